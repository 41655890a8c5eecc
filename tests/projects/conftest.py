"""A tree of departments with two projects in it, and its administrator."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from django.test import Client

from projects.models import Department, NodeType, Project, User
from tests.factories import make_node_type, make_project


@dataclass(frozen=True, slots=True)
class Tree:
    """Science / Research / Vision with a project, Science / Robots with another, and Products."""

    t4: NodeType
    science: Department
    research: Department
    vision: Department
    robots: Department
    products: Department
    segmentation: Project
    walking: Project


def department(name: str, parent: Department | None = None) -> Department:
    return Department.objects.create(name=name, title=name.title(), parent=parent)


@pytest.fixture
def planted(db: None) -> Tree:
    t4 = make_node_type("t4", gpus=8)
    science = department("science")
    research = department("research", science)
    vision = department("vision", research)
    robots = department("robots", science)
    return Tree(
        t4=t4,
        science=science,
        research=research,
        vision=vision,
        robots=robots,
        products=department("products"),
        segmentation=make_project("segmentation", department=vision, t4=1000),
        walking=make_project("walking", department=robots, t4=2000),
    )


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("root"))
    return client
