"""Drafts published on the hub, by base model: a short list for the import form. No torch."""

from dataclasses import dataclass

from models.hub import last_part

MEDUSA, EAGLE, EAGLE3 = "Medusa", "EAGLE", "EAGLE-3"
VICUNA, LLAMA = "lmsys/vicuna-{}-v1.3", "meta-llama/{}"


@dataclass(frozen=True)
class PublishedDraft:
    """A draft of `kind` at the hub id `location` for the base with the hub id `base`."""

    base: str
    kind: str
    location: str


PUBLISHED_DRAFTS = (
    PublishedDraft(VICUNA.format("7b"), MEDUSA, "FasterDecoding/medusa-vicuna-7b-v1.3"),
    PublishedDraft(VICUNA.format("7b"), EAGLE, "yuhuili/EAGLE-Vicuna-7B-v1.3"),
    PublishedDraft(VICUNA.format("13b"), MEDUSA, "FasterDecoding/medusa-vicuna-13b-v1.3"),
    PublishedDraft(VICUNA.format("13b"), EAGLE, "yuhuili/EAGLE-Vicuna-13B-v1.3"),
    PublishedDraft(VICUNA.format("13b"), EAGLE3, "yuhuili/EAGLE3-Vicuna1.3-13B"),
    PublishedDraft(VICUNA.format("33b"), MEDUSA, "FasterDecoding/medusa-vicuna-33b-v1.3"),
    PublishedDraft(VICUNA.format("33b"), EAGLE, "yuhuili/EAGLE-Vicuna-33B-v1.3"),
    PublishedDraft(LLAMA.format("Llama-2-7b-chat-hf"), EAGLE, "yuhuili/EAGLE-llama2-chat-7B"),
    PublishedDraft(LLAMA.format("Llama-2-13b-chat-hf"), EAGLE, "yuhuili/EAGLE-llama2-chat-13B"),
    PublishedDraft(LLAMA.format("Meta-Llama-3-8B-Instruct"), EAGLE, "yuhuili/EAGLE-LLaMA3-Instruct-8B"),
    PublishedDraft(LLAMA.format("Meta-Llama-3-70B-Instruct"), EAGLE, "yuhuili/EAGLE-LLaMA3-Instruct-70B"),
    PublishedDraft(LLAMA.format("Llama-3.1-8B-Instruct"), EAGLE, "yuhuili/EAGLE-LLaMA3.1-Instruct-8B"),
    PublishedDraft(LLAMA.format("Llama-3.1-8B-Instruct"), EAGLE3, "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"),
    PublishedDraft(LLAMA.format("Llama-3.1-8B-Instruct"), EAGLE3, "lmsys/sglang-EAGLE3-LLaMA3.1-Instruct-8B"),
    PublishedDraft(LLAMA.format("Llama-3.1-8B-Instruct"), EAGLE3, "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3"),
    PublishedDraft(LLAMA.format("Llama-3.3-70B-Instruct"), EAGLE3, "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"),
    PublishedDraft(LLAMA.format("Llama-3.3-70B-Instruct"), EAGLE3, "lmsys/sglang-EAGLE3-LLaMA3.3-Instruct-70B"),
    PublishedDraft(LLAMA.format("Llama-3.3-70B-Instruct"), EAGLE3, "nvidia/Llama-3.3-70B-Instruct-Eagle3"),
    PublishedDraft(LLAMA.format("Llama-3.3-70B-Instruct"), EAGLE3, "RedHatAI/Llama-3.3-70B-Instruct-speculator.eagle3"),
    PublishedDraft("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", EAGLE3, "yuhuili/EAGLE3-DeepSeek-R1-Distill-LLaMA-8B"),
    PublishedDraft("Qwen/Qwen2-7B-Instruct", EAGLE, "yuhuili/EAGLE-Qwen2-7B-Instruct"),
    PublishedDraft("Qwen/Qwen2-72B-Instruct", EAGLE, "yuhuili/EAGLE-Qwen2-72B-Instruct"),
    PublishedDraft("Qwen/Qwen3-8B", EAGLE3, "RedHatAI/Qwen3-8B-speculator.eagle3"),
    PublishedDraft("Qwen/Qwen3-14B", EAGLE3, "RedHatAI/Qwen3-14B-speculator.eagle3"),
    PublishedDraft("Qwen/Qwen3-32B", EAGLE3, "RedHatAI/Qwen3-32B-speculator.eagle3"),
)
"""Oldest bases first. Names are from documentation or code of the publishers or users."""


def published_for(*names: str) -> list[PublishedDraft]:
    """Drafts for the base with one of these names: hub ids (with or without a revision), folders or display names. Only
    the last part is compared, ignoring case, so local copies match too."""
    wanted = {last_part(name.partition("@")[0]) for name in names} - {""}
    return [each for each in PUBLISHED_DRAFTS if last_part(each.base) in wanted]
