"""The cache of compiled programs: what is found again, and what is deleted."""

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from vit_jax.run import compile_cache
from vit_jax.run.compile_cache import (
    compiler_facts,
    use_compile_cache,
    watch_compile_cache,
    without_compile_cache,
)


@pytest.fixture(autouse=True)
def own_cache():
    """Each test starts without a cache, and leaves that of the other tests."""
    settings = {
        "jax_compilation_cache_dir": None,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_enable_compilation_cache": True,
    }
    others = ("jax_compilation_cache_max_size", "jax_persistent_cache_enable_xla_caches")
    before = {name: getattr(jax.config, name) for name in (*settings, *others)}
    configure(settings)
    yield
    configure(before)


def configure(settings):
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def tripled(x):
    return 3 * x + 1


def compile_again():
    """Compiles a function as a new process would; returns what the cache did."""
    jax.clear_caches()
    compilation_cache.reset_cache()
    with watch_compile_cache() as use:
        compiled = jax.jit(tripled).lower(np.float32(1)).compile()
    assert compiled(np.float32(2)) == 7
    return use


def folder_in_use():
    return jax.config.jax_compilation_cache_dir


def test_a_program_is_found_again(tmp_path):
    use_compile_cache(str(tmp_path))
    first, second = compile_again(), compile_again()
    assert (first.hits, first.writes) == (0, 1)
    assert (second.hits, second.writes) == (1, 0)
    assert str(first) == f", kept in {folder_in_use()}"
    assert str(second) == ", from the compilation cache"


def test_the_default_is_in_the_users_cache_folder_and_limited(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    use_compile_cache()
    assert folder_in_use().startswith(str(tmp_path / "vit_jax" / "compiled" / "jax-"))
    assert jax.config.jax_compilation_cache_max_size == 4096 * 2**20


def test_without_a_folder_or_with_a_cache_of_the_user_nothing_is_changed(tmp_path):
    use_compile_cache(None)
    assert folder_in_use() is None
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    use_compile_cache(str(tmp_path / "ours"))
    assert folder_in_use() == str(tmp_path / "own")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("changed", ["jaxlib", "nvidia-cudnn-cu13", "cpu"])
def test_another_version_or_cpu_finds_nothing(changed, tmp_path, monkeypatch):
    use_compile_cache(str(tmp_path))
    assert compile_again().writes == 1
    before = folder_in_use()
    jax.config.update("jax_compilation_cache_dir", None)
    facts = {**compiler_facts(jax.devices()[0]), changed: "another"}
    monkeypatch.setattr(compile_cache, "compiler_facts", lambda device: facts)
    use_compile_cache(str(tmp_path))
    assert folder_in_use() != before
    assert (compile_again().hits, compile_again().hits) == (0, 1)


def test_half_a_program_of_a_killed_process_is_deleted(tmp_path):
    """Otherwise JAX could neither read it nor store anything else."""
    use_compile_cache(str(tmp_path))
    compile_again()
    (entry,) = tmp_path.glob("jax-*/jit_tripled-*-cache")
    entry.write_bytes(entry.read_bytes()[:100])
    entry.with_name(entry.name.replace("-cache", "-atime")).unlink()
    jax.config.update("jax_compilation_cache_dir", None)
    use_compile_cache(str(tmp_path))
    assert not entry.exists()
    assert (compile_again().hits, compile_again().hits) == (0, 1)


@pytest.mark.parametrize("place", ["a file", "expired", "read_only"])
def test_a_folder_that_cannot_be_written_is_a_warning(place, gcs, impatient, tmp_path, caplog):
    folder = tmp_path / "file"
    if place == "a file":
        folder.write_text("")
    else:
        gcs.server.faults(**{place: True})
        folder = f"{gcs.url}/compiled"
    use_compile_cache(str(folder))
    assert folder_in_use() is None
    assert caplog.messages[-1].startswith(f"no compilation cache: {folder}")


@pytest.mark.parametrize("others", [True, False])
def test_hosts_use_the_cache_if_all_see_it(tmp_path, monkeypatch, caplog, others):
    """Otherwise process 0 would wait for the others to compile, or they for it."""
    monkeypatch.setattr(compile_cache, "gather", lambda name, value: [value and others, False])
    use_compile_cache(str(tmp_path))
    assert folder_in_use() is None
    assert len(caplog.messages) == others
    if others:
        assert "process 1 has another one or none, or does not see" in caplog.messages[0]
        assert "set compile_cache to a folder or bucket that all hosts share" in caplog.messages[0]


def test_a_bucket_keeps_programs(bucket):
    use_compile_cache(f"{bucket.url}/compiled")
    assert folder_in_use().startswith(f"{bucket.url}/compiled/jax-")
    assert (compile_again().writes, compile_again().hits) == (1, 1)


def test_a_plan_compiles_anew(tmp_path):
    use_compile_cache(str(tmp_path))
    assert compile_again().writes == 1
    with without_compile_cache():
        use = compile_again()
    assert (use.hits, use.writes) == (0, 0)
    assert compile_again().hits == 1
