"""What an installed specframe can do, whether from a checkout or from wheels."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

from specframe import Pipeline
from specframe.plugins import registry


def test_every_distribution_is_installed_and_loads():
    """The core finds the standard strategies, the lab and the embedded pair through their entry points."""
    known = registry()
    assert {"specframe-std", "specframe-lab", "specframe-tiny"} <= set(known.distributions)
    assert known.failures == {}
    assert {"tiny", "tiny-draft"} <= set(known.models)


def test_the_embedded_pair_decodes():
    """The packaged weights and tokenizer files decode text on every default."""
    (result,) = Pipeline(draft_length=3).generate(["import os"], max_new_tokens=8)
    assert result.finish_reason in ("length", "eos")
    assert 1 <= len(result.token_ids) <= 8
    assert result.text


def test_the_command_runs():
    """The console script completes a prompt and names the combination."""
    command = Path(sys.executable).parent / "specframe"
    done = subprocess.run([command, "run", "import os", "--max-new-tokens", "4"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "lossless" in done.stdout


def test_typing_marker_is_packaged():
    """Type checkers of dependants see the annotations."""
    import specframe

    assert (Path(specframe.__file__).parent / "py.typed").exists()
    assert importlib.metadata.version("specframe") == specframe.__version__
