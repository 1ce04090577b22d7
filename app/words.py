"""The words of the field, each said in a few sentences. The page Words shows them; labels that use one link to it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Word:
    """`name` as people write it, `text` what it means; `said` are the other ways it stands in labels."""

    slug: str
    name: str
    text: str
    said: tuple[str, ...] = ()


WORDS = (
    Word(
        "speculative-decoding",
        "Speculative decoding",
        "A language model writes one token a forward pass, and most of that pass is spent fetching weights. Here a "
        "draft guesses some tokens first; the model then looks at all of them in one pass and keeps those it agrees"
        " with. The text is the model's own, in fewer passes.",
    ),
    Word(
        "base",
        "Base",
        "The model whose answers count, also called target or verifier. Its weights stay as they are: training and "
        "measuring never change it.",
        ("target model", "base model"),
    ),
    Word(
        "draft",
        "Draft",
        "What guesses ahead: heads on the base (Medusa), one small layer on it (EAGLE, EAGLE-3), a small model of "
        "its own (standalone), or a look into the text so far (prompt lookup). A draft fits the base it was trained"
        " for and no other.",
    ),
    Word(
        "step",
        "Step",
        "One round: the draft guesses, the base verifies, some tokens are kept. On the pages a thin line, the seam,"
        " begins every step.",
        ("seam",),
    ),
    Word(
        "chain",
        "Chain",
        "Guesses that follow one another: one candidate for the next token, one for the token after it, and so on. "
        "What follows a wrong guess is lost.",
    ),
    Word(
        "tree",
        "Tree",
        "Guesses that branch: several candidates for a place, each with its own continuation, checked in the same "
        "pass. A tree forgives a wrong first choice; its price is more tokens to look at. The best size depends on "
        "the machine, so a training ends by tuning it here.",
        ("drafted tree", "tree of candidates"),
    ),
    Word(
        "depth",
        "Depth",
        "How far ahead a guess lies: depth 1 is the next token. Deeper guesses are right less often.",
    ),
    Word(
        "verification",
        "Verification",
        "The base's one pass over all drafted tokens. It gives its own choice at every place, so each guess is "
        "either the very token it would have written, or is not kept. After the last kept one it adds a token of "
        "its own, so a verification brings at least one.",
    ),
    Word(
        "acceptance",
        "Acceptance",
        "The share of guesses that were kept. By depth it is counted among those whose parent was kept: 70 % at "
        "depth 2 says that where the first guess was right, so was the second in 70 of 100 steps.",
        ("acceptance by depth", "acceptance rate"),
    ),
    Word(
        "tau",
        "τ, mean accepted length",
        "Tokens that one verification brings, the base's own token among them; 1 is what the base does alone. The "
        "pass over the prompt does not count, nor does a step that the answer's end cut short. τ is of draft, base "
        "and questions, not of the machine.",
        ("mean accepted length", "tokens per verification", "accepted length", "τ"),
    ),
    Word(
        "own-token",
        "Own token",
        "The token the base adds after the kept ones: a correction where a guess was wrong, a bonus where all were "
        "right. It is boxed on the pages.",
    ),
    Word(
        "lossless",
        "Lossless",
        "What is written is what the base alone would have written: at temperature 0 the same tokens, above it "
        "tokens of the same distribution. Tests hold this for every method; Compare shows it for any prompt.",
        ("same output",),
    ),
    Word(
        "typical-acceptance",
        "Typical acceptance",
        "Medusa's other rule: a guess is kept where the base finds it likely enough, if not its choice. More is "
        "kept, but it is lossy: the text may differ from plain decoding. It is off unless someone asks for it, under "
        "“Tree and acceptance” in the Playground and in Compare or by the API.",
    ),
    Word(
        "draft-vocabulary",
        "Draft vocabulary",
        "The tokens a draft may guess. Answers use few of a base's many tokens, so EAGLE-3 may guess from the most "
        "frequent ones only: a smaller matrix and a faster draft. Coverage is the share of answer tokens that are "
        "in it; one that is not can only come from the base.",
        ("coverage",),
    ),
    Word(
        "speedup",
        "Speedup",
        "How many times as fast as the base alone, in the same engine, on the same machine and the same prompts. It"
        " is τ, less what drafting costs and what a wider pass costs more than a narrow one; below 1 the draft is "
        "not worth it.",
        ("against plain",),
    ),
    Word(
        "plain",
        "Plain",
        "The base without a draft: what speedups are counted against.",
    ),
    Word(
        "interval",
        "Interval",
        "“1.38 – 1.47× (95 %)” says where the figure would lie if other questions of the kind had been asked: drawn"
        " again and again from the questions and steps that were measured, 95 of 100 draws fall in there. Intervals"
        " that overlap widely tell of no difference. Times are medians, so that a busy moment does not count.",
    ),
    Word(
        "loss-mask",
        "Loss mask",
        "Which tokens of a conversation a draft learns from: the answers, not the questions. Data shows it.",
        ("mask known from",),
    ),
)
BY_SLUG = {word.slug: word for word in WORDS}
