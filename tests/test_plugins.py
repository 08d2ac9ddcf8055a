"""Discovery, the registry, and what is said when a plugin is at fault."""

from __future__ import annotations

import re
import types

import pytest
from command_line import invoke
from specframe_testing.scaffold import package

from specframe import __version__
from specframe.errors import OptionError, PluginError, SpecframeWarning
from specframe.models import aliases
from specframe.plugins.entries import PURPOSES
from specframe.plugins.hookspecs import hookimpl
from specframe.plugins.registry import LIMIT_VARIABLE, Registry, discover, offer, parse_specification, registry
from specframe.plugins.versions import bounds

DRAFTER = """
from specframe import hookimpl

class Lucky:
    '''Guesses.'''
    def __init__(self, luck=1, eager_mode=False):
        if luck < 0:
            raise ValueError(f"luck must be at least 0, got {{luck}}")
        self.luck, self.eager_mode = luck, eager_mode

@hookimpl
def specframe_register_drafters(register):
    register("{name}", Lucky)
"""


@pytest.mark.wide
def test_what_a_class_says_is_not_said_beside_it(site):
    """A plugin that passes its hook more than a name and a class is skipped, with the argument and the plugin's name."""
    site(
        "lucky",
        DRAFTER.format(name="lucky").replace('register("lucky", ', 'register("lucky", summary="Guesses.", factory='),
    )
    assert discover().failures["lucky"].startswith("plugin 'lucky' (lucky_plugin): TypeError: ")
    assert discover().failures["lucky"].endswith("unexpected keyword argument 'summary'")


@pytest.mark.wide
def test_a_plugin_to_load_that_is_not_installed_is_refused(site, monkeypatch):
    """SPECFRAME_PLUGINS with a name that no installed plugin has is refused, instead of leaving the strategies out."""
    site("lucky", DRAFTER.format(name="lucky"))
    monkeypatch.setenv(LIMIT_VARIABLE, "std, luckey")
    with pytest.raises(PluginError, match=r"^SPECFRAME_PLUGINS: unknown plugin 'luckey': .* 'lucky'\?$"):
        discover()


@pytest.mark.wide
def test_options_of_a_strategy_that_takes_none():
    """An option for a strategy without any, and a specification without a name, are refused in plain words."""
    with pytest.raises(OptionError, match=r"^alignment 'ragged' has no option 'foo': it takes none$"):
        discover().make("alignment", "ragged,foo=1")
    with pytest.raises(OptionError, match=r"^expected a name before its options, as in 'name,key=value', got ','$"):
        parse_specification(",")


@pytest.mark.wide
def test_two_plugins_of_one_name_are_both_named(site):
    """A name that two distributions offer cannot be used, both are named, listed both, and everything else is there."""
    site("first", DRAFTER.format(name="same"))
    site("second", DRAFTER.format(name="same"))
    found = discover()
    with pytest.raises(PluginError, match=r"^drafter 'same' is offered by both first and second: uninstall"):
        found.make("drafter", "same")
    assert [entry.distribution for entry in found if entry.name == "same"] == ["first", "second"]
    assert found.make("drafter", "none")


def test_a_plugin_that_does_not_import_is_named_and_the_rest_loads(site, capsys):
    """A broken plugin is warned of with its distribution and its error, and nothing is printed; everything else is there."""
    site("broken", "import a_module_that_is_not_there\n")
    site("lucky", DRAFTER.format(name="lucky"))
    with pytest.warns(SpecframeWarning, match=r"^broken was skipped: plugin 'broken'"):
        found = registry()
    assert set(found.failures) == {"broken"}
    assert "a_module_that_is_not_there" in found.failures["broken"]
    assert {"lucky", "none"} <= set(found.names("drafter"))
    assert capsys.readouterr() == ("", "")


@pytest.mark.wide
def test_a_name_that_is_no_text_is_a_failure_of_its_own(site):
    """What is registered under no name is reported with its distribution; what else the plugin registers is there."""
    site("lucky", DRAFTER.format(name="lucky") + "    register(5, Lucky)\n    register('', Lucky)\n")
    found = discover()
    assert found.failures == {"lucky": "drafter 5: expected a name, a text; drafter '': expected a name, a text"}
    assert found.make("drafter", "lucky").luck == 1


@pytest.mark.wide
@pytest.mark.parametrize(
    ("kind", "option"), [("drafter", "--drafter"), ("alignment", "--align"), ("scheduler", "--schedule")]
)
@pytest.mark.parametrize("name", ["broken", "yours"])
def test_what_is_wrong_with_an_absent_plugin(site, tmp_path, monkeypatch, kind, option, name):
    """The error of a name that nothing offers says what is in its way: an import that failed, or a plugin that is not installed."""
    site("broken", "import a_module_that_is_not_there\n")
    monkeypatch.chdir(tmp_path)
    package.write("yours")
    said = {
        "broken": "Error: 'broken' cannot be used: broken was skipped: plugin 'broken' (broken_plugin): ModuleNotFoundError: ",
        "yours": "Error: 'yours' is the folder of a plugin that is not installed: pip install -e yours\n",
    }
    assert said[name] in invoke("run", option, name).stderr
    with pytest.raises(PluginError, match=re.escape(said[name].removeprefix("Error: ").strip())):
        aliases.resolve(name) if kind == "drafter" else registry().make(kind, name)


@pytest.mark.wide
def test_a_reference_that_does_not_import_is_named_when_used(site):
    """A strategy's module is imported when it is first used; a fault then names the strategy and its distribution."""
    code = DRAFTER.format(name="lucky").replace("Lucky)", '"nowhere.at_all:Lucky")')
    site("lucky", code)
    with pytest.raises(PluginError, match=r"drafter 'lucky' of lucky refers to 'nowhere.at_all:Lucky'.*nowhere"):
        discover().make("drafter", "lucky")


@pytest.mark.wide(but=["==0.1.*"])
@pytest.mark.parametrize("bounds", ["<0.2,>=0.1", ">=99", "==0.1.*"])
def test_a_plugin_made_for_other_versions_is_left_out(site, bounds):
    """A distribution that depends on other versions of specframe is not imported, and the sentence says for which it was made."""
    site("elder", "raise SystemExit", f"Requires-Dist: specframe{bounds}\n")
    site("lucky", DRAFTER.format(name="lucky"))
    found = discover()
    assert found.failures == {
        "elder": f"plugin 'elder' (elder_plugin): it was made for specframe {bounds}, and this is {__version__}: "
        "install a release of elder for this version"
    }
    assert found.entry("drafter", "lucky")
    with pytest.raises(PluginError, match=r"'elder' cannot be used: elder was skipped: .*made for specframe"):
        found.entry("drafter", "elder")


@pytest.mark.wide
@pytest.mark.parametrize("requires", ["specframe", f"specframe{bounds()}", "specframe-std<0.1", "specframes<0.1"])
def test_a_plugin_made_for_these_versions_is_loaded(site, requires):
    """Bounds that hold, none, and those of other packages leave a plugin in."""
    site("lucky", DRAFTER.format(name="lucky"), f"Requires-Dist: {requires}\n")
    assert discover().entry("drafter", "lucky")


@pytest.mark.wide
def test_discovery_can_be_narrowed(site, monkeypatch):
    """With the environment variable only the entry points it names are loaded; empty means none but specframe's own."""
    site("lucky", DRAFTER.format(name="lucky"))
    monkeypatch.setenv(LIMIT_VARIABLE, "lucky, std")
    assert set(discover().distributions) == {"lucky", "specframe-std"}
    monkeypatch.setenv(LIMIT_VARIABLE, "lucky")
    assert discover().names("drafter") == ["lucky"]
    monkeypatch.setenv(LIMIT_VARIABLE, "")
    assert {entry.distribution for entry in discover()} == {"specframe"}


@pytest.mark.wide
@pytest.mark.parametrize(
    ("specification", "message"),
    [
        ("lucky,lucks=3", "drafter 'lucky' has no option 'lucks': its options are luck, eager_mode"),
        ("lucky,luck", "drafter 'lucky,luck': option 'luck' of 'lucky': expected key=value, as in 'lucky,key=value'"),
        ("lucky,=3", "drafter 'lucky,=3': option '=3' of 'lucky': expected key=value, as in 'lucky,key=value'"),
        ("lucky,luck=-1", "drafter 'lucky': luck must be at least 0, got -1"),
        ("lucky,luck=many", "drafter 'lucky' could not be made from 'lucky,luck=many'"),
    ],
)
def test_bad_options(site, specification, message):
    """An option that is unknown, malformed or out of range is answered with what was expected."""
    site("lucky", DRAFTER.format(name="lucky"))
    with pytest.raises(OptionError) as raised:
        discover().make("drafter", specification)
    assert str(raised.value).startswith(message)


def plugin(hook, function):
    """Return a plugin that implements one hook."""
    module = types.SimpleNamespace()

    def implementation(register):
        function(register)

    setattr(module, hook, hookimpl(implementation))
    return module


def defaults(*given):
    """Return a registry in which distributions register defaults: (distribution, purpose, specification)."""
    found = Registry()
    for distribution, *pair in given:
        hook = plugin("specframe_register_defaults", lambda register, pair=pair: register(*pair))
        offer(found, hook, distribution)
    return found


@pytest.mark.wide
def test_a_default_of_two_plugins_is_told():
    """Where two plugins have a default for one purpose, both are named and neither is used; one registered twice is one."""
    found = defaults(("ours", "sampling", "block"), ("theirs", "sampling", "their,depth=2"))
    with pytest.raises(PluginError) as raised:
        found.default("sampling")
    assert str(raised.value) == (
        "the default acceptance rule for 'sampling' is registered as 'block' by ours and 'their,depth=2' by theirs: "
        "name one of them, or uninstall one"
    )
    assert defaults(*[("ours", "sampling", "block")] * 2).default("sampling") == "block"


@pytest.mark.wide
def test_a_missing_default_is_told():
    """Where no plugin has a default for a purpose, the error names the kind of strategy to name."""
    with pytest.raises(
        PluginError, match=r"^no plugin that is loaded offers a default drafter for 'prompt lookup': name one,"
    ):
        Registry().default("prompt lookup")


@pytest.mark.wide
def test_a_default_that_cannot_be_is_a_failure():
    """A purpose that nobody asks for, and a specification that is no text, are failures of their distribution."""
    found = defaults(("ours", "alignmnt", "grid"), ("theirs", "alignment", 5))
    assert found.failures["ours"].startswith("default 'grid': unknown purpose 'alignmnt': expected one of ")
    assert found.failures["theirs"] == "default for alignment: expected a name, a text, got 5"
    assert not found.defaults


@pytest.mark.wide
def test_every_purpose_has_a_default():
    """The plugins that come with specframe have one default for each purpose, and it is of the kind it should be."""
    known = registry()
    for purpose, kind in PURPOSES.items():
        name, _ = parse_specification(known.default(purpose))
        assert name in (known.models if kind == "model" else known.names(kind)), purpose


@pytest.mark.wide
def test_every_built_in_is_described():
    """Everything the registry offers imports and has a first line to be listed with."""
    for entry in registry():
        assert entry.traits.summary, f"{entry.kind} {entry.name} has no docstring"
