from __future__ import annotations

import pytest

from orchestrator.archive.secrets import SecretSearch

TOKEN = "hf_" + "aB3" * 12


@pytest.mark.parametrize(
    "secret",
    [
        TOKEN,
        "sk-proj-" + "a1B2" * 8,
        "ghp_" + "x9" * 18,
        "github_pat_" + "11ABC_" * 8,
        "AKIA" + "Q7" * 8,
        "-----BEGIN RSA PRIVATE KEY-----",
    ],
)
def test_usual_shapes_are_found_with_their_line(secret: str) -> None:
    text = f"first\nsecond\nkey = {secret}\n"
    assert SecretSearch({}).line_of(text.encode()) == 3


def test_a_value_of_the_own_environment_is_found() -> None:
    search = SecretSearch({"WANDB_API_KEY": "0123456789abcdef", "PATH": "/usr/local/bin"})
    assert search.line_of(b"login 0123456789abcdef") == 1
    assert search.line_of(b"/usr/local/bin") is None


def test_ordinary_text_holds_none() -> None:
    texts = [
        b"task-0123456789abcdef0123456789abcdef0123456789",
        b"commit 72be4cfb19c9a66c0b55ce4b4dc30a1dd992a49d",
        b"hf_short, TOKEN=, a private key",
    ]
    search = SecretSearch({"HF_TOKEN": "", "TOKENIZERS_PARALLELISM": "false"})
    assert [search.line_of(text) for text in texts] == [None, None, None]
