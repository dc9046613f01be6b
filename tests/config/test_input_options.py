"""Every surface takes every option of the input, or the declaration says why not."""

import json
import re
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperCommand, TyperOption

import share_state
from docs.reference_pages import options_page
from share_state.api.arguments import JudgedOptions, ReadOptions
from share_state.cli.command import app
from share_state.cli.input_options import InputOptions
from share_state.cli.main import COMMANDS
from share_state.config.declaration import (
    CONFIGURATION,
    DATA_SOURCE,
    OTHER_COMMANDS,
    PYTHON_CALLS,
    READING_COMMANDS,
    SURFACES,
    OptionSpec,
    python,
    undeclared_fields,
)
from share_state.config.input_spec import ARGUMENTS, InputSpec, input_options, spec_of_options
from share_state.config.loading import load_settings
from share_state.config.model import AuditSettings, keys
from share_state.config.sections import InputSettings, LimitSettings
from share_state.errors import ShareStateError
from share_state.spark.data_source import ShareGroupStateSource, read_option
from tests.cli.commands import run_cli

PAGE = Path(__file__).parents[2] / "docs/options.md"

WRITTEN = {
    "format": ("segments", "segments"),
    "dialect": ("control_records", "control_records"),
    "columns": ("key=k", {"key": "k"}),
    "kafka_properties": ("client.properties", "client.properties"),
    "topics": ("topics.json", "topics.json"),
    "state_partitions": ("7", 7),
    "groups": ("/groups", ["/groups"]),
    "group_partitions": ("9", 9),
    "dead_letters": ("/letters", ["/letters"]),
    "dead_letters_copied_last": ("true", True),
    "mode": ("best-effort", "best-effort"),
    "subscriptions": ("subscriptions.json", "subscriptions.json"),
    "ignore_uncheckpointed": ("true", True),
    "index": ("/index", "/index"),
    "limits": ("delivery_count=3", {"delivery_count": 3}),
    "rules": ("TORN_TAIL=off", {"TORN_TAIL": "off"}),
    "as_of_offset": ("2=5", {"2": 5}),
    "as_of_time": ("1970-01-01T00:00:01Z", 1000),
    "judge": ("none", "none"),
}
"""Option -> a value as a command takes it, and as InputSpec holds it."""

OPTIONS = {option.name: option for option in input_options()}


def commands() -> dict[str, TyperCommand]:
    """Every command, as typer knows it."""
    for module in {*COMMANDS.values()}:
        import_module(f"share_state.cli.{module}")
    return typer.main.get_command(app).commands  # type: ignore[attr-defined]


def flags(command: str) -> dict[str, TyperOption]:
    """Option of a command -> its declaration by typer."""
    return {flag: one for one in commands()[command].params if isinstance(one, TyperOption) for flag in one.opts}


def held(spec: InputSpec | AuditSettings, option: OptionSpec) -> object:
    """The value of an option in an InputSpec or in settings."""
    found: Any = spec
    for name in option.path:
        found = found[0] if name == "N" else getattr(found, name)
    return found.model_dump(exclude_unset=True) if isinstance(found, LimitSettings) else found


def test_each_field_of_an_input_is_an_option_or_says_why_not():
    missing = [key for model in (InputSpec, InputSettings) for key, why in undeclared_fields(model).items() if not why]
    assert missing == []
    assert len(OPTIONS) == len(input_options()) == len(WRITTEN)
    assert WRITTEN.keys() == OPTIONS.keys()


def test_each_command_reads_an_input_or_says_why_not():
    assert set(COMMANDS) == {*READING_COMMANDS, *OTHER_COMMANDS}
    assert all(OTHER_COMMANDS.values())
    assert set(PYTHON_CALLS) == {
        name
        for name in share_state.__all__
        if callable(call := getattr(share_state, name)) and "input" in getattr(signature(call), "parameters", ())
    }


def test_each_reason_is_of_a_surface_and_written():
    for option in OPTIONS.values():
        assert set(option.without) <= set(SURFACES), option.name
        assert all(option.without.values()), option.name


_OF_SIMULATE = ("--dialect", "--groups", "--group-partitions", "--state-partitions")
"""Options of `simulate` that are called as those of an input, and say what is to be written."""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_takes_the_options_that_have_no_reason_against_it(command: str):
    declared = flags(command)
    for option in OPTIONS.values():
        has_own = command == "simulate" and option.flag in _OF_SIMULATE
        assert (option.flag in declared) == option.is_taken_by(command) or has_own, option.flag
        if option.is_taken_by(command):
            assert declared[option.flag].help == option.help
            assert not declared[option.flag].hidden


@pytest.mark.parametrize("call", PYTHON_CALLS)
def test_a_python_call_takes_the_options_that_have_no_reason_against_it(call: str):
    function = getattr(share_state, call)
    for option in OPTIONS.values():
        if option.is_taken_by(python(call)):
            assert f"            {option.argument}: {option.meaning}." in function.__doc__, option.argument
        elif not any(one.is_taken_by(python(call)) for one in OPTIONS.values() if one.argument == option.argument):
            with pytest.raises(TypeError, match=f"unexpected keyword argument '{option.argument}'"):
                function(**{"input": "nowhere", option.argument: None})


def test_the_types_of_python_arguments_are_those_of_the_options():
    for options, call in ((ReadOptions, "explain"), (JudgedOptions, "reconstruct")):
        declared = {option.argument for option in OPTIONS.values() if option.is_taken_by(python(call))}
        assert options.__annotations__.keys() == declared


@pytest.mark.parametrize("name", OPTIONS)
def test_the_configuration_and_its_variables_take_an_option(name: str):
    option = OPTIONS[name]
    required = {"SHARE_STATE_SOURCES__0__PATH": "/x", "SHARE_STATE_WAREHOUSE": "/w"}
    if not option.is_taken_by(CONFIGURATION):
        assert option.without[CONFIGURATION]
        assert option.key not in {key.name for key in keys()}
        return
    text, value = WRITTEN[name]
    if option.kind in ("map", "list"):
        text = str(value)
    settings = load_settings(None, (), required | {option.variable.replace("__N__", "__0__"): text})
    assert held(settings, option) == value


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("command", READING_COMMANDS)
def test_a_command_hands_an_option_on(command: str, name: str):
    option = OPTIONS[name]
    if not option.is_taken_by(command):
        return
    parameters = {one.name: one for one in InputOptions.parameters(command)}
    text, value = WRITTEN[name]
    given = {"flag": True, "number": value, "list": [text], "map": [text]}.get(option.kind, text)
    values = {one: given if one == name else parameter.default for one, parameter in parameters.items()}
    spec = InputOptions.of(values).spec(["/x"])
    assert held(spec, option) == value
    without = InputOptions({}).spec(["/x"])
    assert {one.name for one in OPTIONS.values() if held(spec, one) != held(without, one)} == {name}


def test_the_data_source_takes_the_options_that_have_no_reason_against_it():
    for option in OPTIONS.values():
        source = ShareGroupStateSource({option.argument: "x", "table": "records"})
        is_known = any(one.is_taken_by(DATA_SOURCE) for one in OPTIONS.values() if one.argument == option.argument)
        if not is_known:
            with pytest.raises(ShareStateError, match=f"option {option.argument}: no such option"):
                source.schema()
            continue
        source.schema()
        text, value = WRITTEN[option.name]
        text = json.dumps(value) if option.kind in ("map", "list") else text
        given = dict([read_option(option, {option.argument: text})])
        spec = spec_of_options(ARGUMENTS, ["/x"], given)
        assert held(spec, option) == value, option.argument


def test_the_page_of_options_is_that_of_the_declaration():
    assert PAGE.read_text(encoding="utf-8") == options_page(), "run: python -m docs.reference_pages"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_no_python_type(capfd: pytest.CaptureFixture[str], command: str):
    text = run_cli(capfd, command, "--help").out
    assert not re.findall(r"<\w[^>]*>", text)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_with_a_fixed_set_of_values_is_a_choice(command: str):
    for flag, declared in flags(command).items():
        descriptor = declared.type_descriptor
        if descriptor.choices is not None:
            assert declared.metavar == "|".join(map(str, descriptor.choices)), flag
        option = next((one for one in OPTIONS.values() if one.flag == flag and one.is_taken_by(command)), None)
        if option is not None and option.kind == "choice":
            assert descriptor.choices == option.choices, flag
