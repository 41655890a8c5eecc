"""What would happen to what is typed now.

Whether it starts, why not, what it costs, how it is held.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from django.forms import BoundField
from django.utils.translation import gettext as _

from projects.idle_rules import max_run_s
from projects.models import NodeType
from scheduling import formats, texts
from scheduling.capacity import Supply, supplies
from scheduling.forms.amounts import AmountField, parse_number, written
from scheduling.forms.base import WorkloadForm
from scheduling.services import Preview, WorkloadSpec, preview
from scheduling.texts import estimates


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the pane says.

    Attributes:
        spec: As far as the planner looks at it; None while an amount or the place is wrong.
        sentence: Why it starts or waits.
        notes: What a person should know about such a request before sending it.
        wrong: Fields that have to be put right first.
        command: A training's arguments as they were split.
        node_type: What it would get now, or is first preferred.
    """

    spec: WorkloadSpec | None
    preview: Preview | None
    sentence: str
    notes: tuple[str, ...]
    wrong: tuple[BoundField, ...]
    command: tuple[str, ...]
    node_type: NodeType | None = None

    @property
    def eta(self) -> str:
        """When it would start, where it would wait."""
        if self.preview is None or self.preview.starts_now:
            return ""
        return estimates.told(self.preview.eta)

    @property
    def cost_per_hour(self) -> Decimal | None:
        """On the node type that it would get."""
        return self.preview.cost_per_hour if self.preview else None


def outlook_of(form: WorkloadForm) -> Outlook:
    """Ask the planner about the form as it stands."""
    spec = form.draft()
    notes = tuple(_roundings(form))
    command = form.cleaned_data.get("command", ()) + form.cleaned_data.get("arguments", ())
    if spec is None:
        wrong = tuple(form[name] for name in form.errors if name in form.fields)
        return Outlook(None, None, "", notes, wrong, command)
    answer = preview(spec, owner=form.user)
    names = [answer.node_type] if answer.node_type else list(spec.node_types)
    notes += tuple(_replica_notes(spec, answer)) + tuple(_time_notes(spec))
    supply = next(iter(supplies(NodeType.objects.filter(name__in=names))), None)
    if supply is None:
        return Outlook(spec, answer, texts.reason_sentence(answer.reason), notes, (), command)
    notes += tuple(_fraction_notes(spec, supply))
    sentence = texts.reason_sentence(answer.reason)
    return Outlook(spec, answer, sentence, notes, (), command, supply.node_type)


def _replica_notes(spec: WorkloadSpec, answer: Preview) -> Iterator[str]:
    """With how many replicas it would begin."""
    if spec.max_replicas == 1:
        return
    values = {"n": answer.num_replicas, "most": spec.max_replicas}
    if not answer.starts_now:
        yield _("It waits until %(n)s replicas can start together.") % values
    elif answer.num_replicas < spec.max_replicas:
        yield _(
            "It begins with %(n)s of up to %(most)s replicas and grows while there is room."
        ) % (values)
    else:
        yield _("It begins with all %(n)s replicas.") % values


def _time_notes(spec: WorkloadSpec) -> Iterator[str]:
    """How long it may run, where the project says so."""
    allowed = max_run_s(spec.project, spec.kind)
    if spec.max_run_s is None and allowed is not None:
        text = _("Project %(project)s lets it run for %(limit)s at most; its owner is warned.")
        yield text % {"project": spec.project, "limit": formats.duration(allowed)}


def _roundings(form: WorkloadForm) -> Iterator[str]:
    """Amounts that were typed more finely than Allot counts."""
    for name, field in form.fields.items():
        kept = form.cleaned_data.get(name)
        typed = str(form[name].value() or "").strip()
        number = parse_number(typed) if isinstance(field, AmountField) else None
        if number is None or not isinstance(kept, int) or not isinstance(field, AmountField):
            continue
        counted = written(kept, field.unit)
        if parse_number(counted) != number:
            yield _("%(label)s: %(typed)s is counted as %(counted)s.") % {
                "label": field.label,
                "typed": typed,
                "counted": counted,
            }


def _fraction_notes(spec: WorkloadSpec, supply: Supply) -> Iterator[str]:
    """How this node type holds a part of a GPU, and what the part is of."""
    memory_mib = supply.node_type.gpu_memory_mib
    milli = spec.gpu_milli
    if milli is None and spec.gpu_memory_mib and memory_mib:
        milli = -(-1000 * spec.gpu_memory_mib // memory_mib)
        yield _("On %(type)s that is %(part)s of a GPU.") % {
            "type": supply.node_type,
            "part": formats.gpus(milli),
        }
    if milli is None or milli >= 1000:
        return
    if supply.is_simulated:
        yield _("%(type)s is simulated: its driver is, and the share holds as on a real one.") % {
            "type": supply.node_type
        }
    else:
        yield from supply.fraction_texts
    yield _("The share caps GPU memory at %(memory)s.") % {
        "memory": formats.memory(memory_mib * milli // 1000)
    }
