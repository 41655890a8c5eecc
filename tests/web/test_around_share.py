"""What goes around the library that holds it to its share is shown, and to whom by name."""

from __future__ import annotations

import pytest
from django.test import Client

from projects.models import User
from scheduling.agent.protocol import AroundShare
from scheduling.cycle import run_cycle
from scheduling.models import Workload
from tests.factories import attempt_report, session_spec, submitted
from tests.scheduling.conftest import Organisation
from tests.scheduling.conftest import organisation as organisation

pytestmark = pytest.mark.django_db

UNCOUNTED = AroundShare("GPU-sim-t4-1-0", used_mib=6144, share_mib=4967, uncounted_mib=2048)
PAST = AroundShare("GPU-sim-t4-1-0", used_mib=6144, share_mib=4967, uncounted_mib=0)


@pytest.fixture
def session(organisation: Organisation) -> Workload:
    row = submitted(session_spec(organisation.vision, name="around"), organisation.vera)
    run_cycle()
    organisation.agent.run(row)
    row.refresh_from_db()
    return row


def page_of(user: User, address: str, language: str = "en") -> str:
    client = Client(headers={"accept-language": language})
    client.force_login(user)
    return client.get(address).content.decode().replace("\N{NO-BREAK SPACE}", " ")


def say(organisation: Organisation, session: Workload, around: AroundShare | None) -> None:
    report = attempt_report(session, "running", is_ready=True, started_at=1.0, around_share=around)
    organisation.agent.report(report)


@pytest.mark.parametrize(
    ("around", "language", "sentence"),
    [
        (UNCOUNTED, "en", "nothing counts the 2 GiB that it takes. All its programs take 6 GiB"),
        (UNCOUNTED, "ru", "занятые ею 2"),
        (PAST, "en", "Its programs take 6 GiB of a GPU, and the share is 4.9 GiB"),
        (PAST, "ru", "Программы занимают на GPU 6"),
    ],
)
def test_its_own_page_and_its_nodes_say_so(
    organisation: Organisation,
    session: Workload,
    around: AroundShare,
    language: str,
    sentence: str,
) -> None:
    say(organisation, session, around)
    for address in (f"/workloads/{session.pk}", f"/nodes/{session.node}"):
        assert sentence in page_of(organisation.vera, address, language)
    say(organisation, session, None)
    assert sentence in page_of(organisation.vera, f"/workloads/{session.pk}", language)
    assert "data-around-share" not in page_of(organisation.vera, f"/nodes/{session.node}")


def test_who_may_not_see_the_workload_is_not_told_its_name(
    organisation: Organisation, session: Workload
) -> None:
    say(organisation, session, UNCOUNTED)
    page = page_of(organisation.lena, f"/nodes/{session.node}")
    assert "A workload of another project: A program opened" in page
    assert "around</a>" not in page
    page = page_of(organisation.vera, f"/nodes/{session.node}")
    assert "around</a>: A program opened" in page
