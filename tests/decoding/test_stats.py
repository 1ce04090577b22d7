"""τ and acceptance by depth, worked by hand."""

from decoding.stats import acceptance_by_rank, summarize
from decoding.step import DraftRecord, EmittedToken, Step

TREE = DraftRecord((5, 6, 7, 8), (-1, -1, 0, 2), (1, 1, 2, 3), (0, 1, 0, 0), (-0.1,) * 4)


def step(accepted, counted=True, finish=None, draft=TREE, index=1):
    tokens = [EmittedToken(draft.tokens[n], "draft", draft.depths[n], draft.ranks[n]) for n in accepted]
    tokens.append(EmittedToken(9, "target"))
    return Step(index, "verify", tuple(tokens), draft, tuple(accepted), counted, finish, 1.0, 2.0, 0.5)


def test_prefill_and_cut_steps_are_left_out_of_the_mean_accepted_length():
    prefill = Step(0, "prefill", (EmittedToken(1, "target"),), counted=False, ms_verify=4.0)
    summary = summarize([prefill, step([0, 2]), step([]), step([0], counted=False, finish="length")])
    assert summary.verifications == 2
    assert summary.mean_accepted_length == (3 + 1) / 2
    assert summary.tokens == 1 + 3 + 1 + 2
    assert summary.tokens_by_origin == {"target": 4, "draft": 3}
    assert summary.finish == "length"
    assert (summary.ms_prefill, summary.ms_draft, summary.ms_verify, summary.ms_other) == (4.0, 3.0, 6.0, 1.5)
    assert summary.tokens_per_second == 7 / 14.5 * 1000


def test_acceptance_by_depth_is_conditional_on_the_parent_having_been_accepted():
    steps = [step([0, 2, 3]), step([0, 2]), step([0]), step([1]), step([])]
    # depth 1: 4 of 5; depth 2: node 0 was accepted 3 times, its child twice (node 1 has no children); depth 3: 1 of 2
    assert summarize(steps).acceptance_by_depth == (0.8, 2 / 3, 0.5)


def test_depths_that_no_step_reached_are_left_out():
    assert summarize([step([])]).acceptance_by_depth == (0.0,)
    assert summarize([step([], draft=DraftRecord())]).acceptance_by_depth == ()


def test_the_summary_of_no_steps_is_empty():
    summary = summarize([])
    assert summary.tokens == 0 and summary.mean_accepted_length == 0.0 and summary.tokens_per_second == 0.0


def test_json_has_the_totals():
    summary = summarize([step([0])]).to_json()
    assert summary["mean_accepted_length"] == 2.0 and summary["tokens_per_second"] > 0 and summary["ms_total"] == 3.5


def test_acceptance_by_rank_counts_the_children_of_accepted_nodes():
    """Two steps on the tree 0, 1, 00, 01, 10: one accepts 0 then 01, one accepts 1 and stops there."""
    draft_record = DraftRecord((5, 6, 7, 8, 9), (-1, -1, 0, 0, 1), (1, 1, 2, 2, 2), (0, 1, 0, 1, 0))
    token = EmittedToken(1, "target")
    steps = [
        Step(1, "verify", (token,) * 3, draft_record, (0, 3)),
        Step(2, "verify", (token,) * 2, draft_record, (1,)),
        Step(3, "verify", (token,), draft_record, (), counted=False),
    ]
    assert acceptance_by_rank(steps) == ((0.5, 0.5), (0.0, 1.0))
    assert acceptance_by_rank(steps, ranks=1) == ((0.5,), (0.0,))
    assert acceptance_by_rank([]) == ()
