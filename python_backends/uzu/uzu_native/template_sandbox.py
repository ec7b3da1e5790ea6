"""The Jinja environment in which models' chat templates run: as transformers sets it up, with bounds.

A template comes from whoever made the model. It can reach nothing outside, and cannot run for ever or fill
the memory: loop steps and calls share one budget per rendering, and texts have a largest length.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_STEPS = 200_000
"""Loop steps and calls in one rendering."""
MAX_CHARACTERS = 16 * 1024 * 1024
"""Length of the longest text that a template may build, and of its whole output."""
MAX_EXPONENT = 64

_BUDGET = " step budget"


class TemplateLimitError(jinja2.TemplateError):
    """A template went over one of the bounds."""


class StepBudget:
    """Counts the steps of one rendering."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self._left = steps

    def spend(self) -> None:
        """Take one step.

        Raises:
            TemplateLimitError: none is left.

        """
        self._left -= 1
        if self._left < 0:
            raise TemplateLimitError("it takes too many steps")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Compiles and renders templates.

    Args:
        clock: what `strftime_now` reads.

    """

    intercepted_binops = frozenset({"+", "*", "**"})

    def __init__(self, clock: Callable[[], datetime] = datetime.now) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag]
        )
        self.concat = _join  # type: ignore[method-assign]
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: clock().strftime(format)

    def render(self, template: jinja2.Template, variables: Mapping[str, Any]) -> str:
        """The output of a template of this environment.

        Raises:
            TemplateLimitError: it went over a bound.
            Exception: whatever the template's own operations raise.

        """
        return _join(template.generate({**variables, _BUDGET: StepBudget()}))

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call on behalf of a template."""
        self._budget(context).spend()
        return super().call(context, called, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute one of `intercepted_binops` on behalf of a template."""
        match operator, left, right:
            case "+", str(), str() if len(left) + len(right) > MAX_CHARACTERS:
                raise TemplateLimitError("it builds too long a text")
            case ("*", str() | list() | tuple() as sequence, int(count)) | (
                "*",
                int(count),
                str() | list() | tuple() as sequence,
            ) if len(sequence) * count > MAX_CHARACTERS:
                raise TemplateLimitError("it builds too long a text")
            case "**", _, _ if not isinstance(right, int | float) or abs(right) > MAX_EXPONENT:
                raise TemplateLimitError("it raises to too high a power")
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        return cast(nodes.Template, _BoundedOperations(self).visit(tree))

    @pass_context
    def counted(self, context: Context, items: Iterable[Any]) -> Iterator[Any]:
        """The items of a loop, each of which costs a step."""
        budget = self._budget(context)
        for item in items:
            budget.spend()
            yield item

    def joined(self, *values: Any) -> str:
        """What the operator `~` means."""
        return _join(map(str, values))

    @staticmethod
    def _budget(context: Context) -> StepBudget:
        return cast(StepBudget, context.parent[_BUDGET])


class _BoundedOperations(NodeTransformer):
    """Puts the sandbox's methods in the place of loops over anything and of the operator `~`."""

    def __init__(self, sandbox: TemplateSandbox) -> None:
        self._sandbox = sandbox

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (Jinja calls it by this name)
        self.generic_visit(node)
        node.iter = self._call_of("counted", [node.iter])
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 (as above)
        self.generic_visit(node)
        return self._call_of("joined", node.nodes)

    def _call_of(self, method: str, arguments: Sequence[nodes.Node]) -> nodes.Call:
        call = nodes.Call(nodes.EnvironmentAttribute(method), list(arguments), [], None, None)
        call.set_environment(self._sandbox)
        return call


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks assistants' text for training; here it only shows it."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _join(texts: Iterable[str]) -> str:
    parts, length = [], 0
    for text in texts:
        length += len(text)
        if length > MAX_CHARACTERS:
            raise TemplateLimitError(f"it writes more than {MAX_CHARACTERS} characters")
        parts.append(text)
    return "".join(parts)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is: Jinja's own filter escapes it for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))
