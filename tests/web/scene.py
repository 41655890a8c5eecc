"""A cluster in the middle of the story, for tests of pages: a session, a displaced borrower."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.utils import timezone

from projects.models import Project, User
from scheduling.cycle import run_cycle
from scheduling.models import Checkpoint, Workload
from tests.factories import make_member, make_project, session_spec, submitted, training_spec
from tests.web.organisation import Organisation, make_organisation


@dataclass(frozen=True, slots=True)
class Scene:
    """Who there is and what runs.

    Attributes:
        stranger: Logged in, member of no project.
        session: Runs and answers; Vera's.
        refused: Waits, since vision's quota is in use.
        borrower: Language's training, displaced by speech and waiting again.
        failed: Ended with an exit code.
    """

    organisation: Organisation
    speech: Project
    admin: User
    stranger: User
    session: Workload
    refused: Workload
    borrower: Workload
    failed: Workload


def make_scene() -> Scene:
    """Play the story up to the displaced borrower."""
    organisation = make_organisation()
    speech = make_project("speech", t4=4000)
    sergey = make_member(speech, "sergey")
    agent = organisation.agent
    session = submitted(session_spec(organisation.vision, name="explore"), organisation.vera)
    failed = submitted(
        training_spec(organisation.language, name="broken", backoff_limit=0),
        organisation.lena,
    )
    run_cycle()
    agent.run(session)
    agent.end(failed, exit_code=3, last_lines=["Traceback", "no such file"])
    borrower = submitted(
        training_spec(organisation.language, name="borrower", num_devices=4), organisation.lena
    )
    run_cycle()
    agent.run(borrower)
    borrower.refresh_from_db()
    Checkpoint.objects.create(
        workload=borrower,
        attempt=borrower.current,
        key="step-120",
        step=120,
        saved_at=timezone.now() - timedelta(minutes=12),
        size_bytes=3_200_000,
        sha256="ab" * 32,
    )
    for number in range(4):
        submitted(training_spec(speech, name=f"train-{number}"), sergey)
    run_cycle()
    agent.end(borrower, cause="evicted", exit_code=0)
    submitted(session_spec(organisation.vision, name="second", gpu_milli=1000), organisation.vera)
    run_cycle()
    refused = submitted(
        session_spec(organisation.vision, name="too-much", gpu_milli=600), organisation.vera
    )
    run_cycle()
    for workload in (session, refused, borrower, failed):
        workload.refresh_from_db()
    return Scene(
        organisation=organisation,
        speech=speech,
        admin=User.objects.create_superuser("admin"),
        stranger=User.objects.create_user("stranger"),
        session=session,
        refused=refused,
        borrower=borrower,
        failed=failed,
    )
