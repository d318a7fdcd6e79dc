"""What holds for every test below this folder."""

from tests.support.leaks import (
    end_of_tasks,
    leaks,
    pytest_fixture_setup,
    tasks_of_an_async_test,
)

__all__ = ["end_of_tasks", "leaks", "pytest_fixture_setup", "tasks_of_an_async_test"]
