import pytest

from vit_jax.storage.private import hide_private, hide_secrets, without_private


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    monkeypatch.setenv("wandb_api_key", "hf_0123456789ab")
    monkeypatch.setenv("MY_SECRET", "short")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("a hf_0123456789 b", "a $HF_TOKEN b"),
        ("=hf_0123456789ab,", "=$wandb_api_key,"),  # The longest value first.
        ("https://ada:pass@host/a", "https://host/a"),
        ("s3://bucket/ada@home", "s3://bucket/ada@home"),
        ("short on cpu", "short on cpu"),
        ("/home/ada/runs", "/home/ada/runs"),
    ],
)
def test_secrets_are_replaced_by_their_names(text, hidden):
    assert hide_secrets(text) == hidden


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("/home/ada", "~"),
        ("--workdir=/home/ada/runs", "--workdir=~/runs"),
        ("'/home/ada/a', \"/home/ada\"", "'~/a', \"~\""),
        ("/home/adam /home/ada-2 /data/home/ada", "/home/adam /home/ada-2 /data/home/ada"),
        ("a/hf_0123456789", "a/$HF_TOKEN"),
    ],
)
def test_the_home_folder_becomes_a_tilde(text, hidden):
    assert hide_private(text) == hidden


def test_a_home_folder_that_is_the_root_is_no_secret(monkeypatch):
    monkeypatch.setenv("HOME", "/")
    assert hide_private("/a / b") == "/a / b"


def test_all_texts_of_json_are_replaced():
    found = without_private({"a": ["/home/ada/x", 1, None], "b": {"c": "hf_0123456789"}})
    assert found == {"a": ["~/x", 1, None], "b": {"c": "$HF_TOKEN"}}
