"""Metadata and entry points; pyproject.toml holds the build system and the tools' settings."""

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
LIBVIRT = ["libvirt-python>=9.0"]
POSTGRESQL = ["psycopg[binary]>=3.1"]
TEST = [
    *POSTGRESQL,
    "cheroot>=9.0",
    "greenlet>=3.0",
    "hypothesis>=6.100",
    "openstack-placement>=16.0,<17",
    "pytest>=8.0",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "responses>=0.25",
]
DOCS = ["myst-parser>=3.0", "shtab>=1.7", "sphinx>=7.2"]
DEV = [
    "import-linter>=2.0",
    "mypy>=1.13",
    "ruff>=0.8",
    "lxml-stubs",
    "types-PyYAML",
    "types-jsonschema",
    "types-requests",
]


class BuildWithServiceFiles(build_py):
    """Puts what `plimsoll install-service` installs beside the module that reads it.

    The man pages and the completion are there if `docs/build.py build/docs` has made them.
    """

    def run(self):
        super().run()
        target = Path(self.build_lib) / "agent" / "daemon" / "files"
        shutil.rmtree(target, ignore_errors=True)
        for source, name in (
            (HERE / "systemd", "systemd"),
            (HERE / "etc" / "plimsoll", "etc"),
            (HERE / "build" / "docs" / "man", "docs/man"),
            (HERE / "build" / "docs" / "completion", "docs/completion"),
        ):
            if source.is_dir() and not self.editable_mode:
                shutil.copytree(source, target / name)


setup(
    name="plimsoll",
    version="0.1.0",
    description="The load line for hypervisors: a compute-node agent that claims before anything runs",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    cmdclass={"build_py": BuildWithServiceFiles},
    packages=find_packages(include=["agent", "agent.*", "drivers", "drivers.*", "plimsoll"]),
    package_data={
        "agent": [
            "py.typed",
            "api/*.json",
            "http/*.css",
            "placement/embedded/*.css",
            "placement/embedded/*.html",
            "status/*.html",
        ],
        "drivers": ["py.typed", "fake/*.yaml"],
        "plimsoll": ["py.typed"],
    },
    install_requires=[
        "apscheduler>=3.9,<4",
        "httptools>=0.6",
        "Jinja2>=3.1",
        "jsonschema>=4.10",
        "keystoneauth1>=5.0",
        "lxml>=4.9",
        "os-resource-classes>=1.1",
        "os-traits>=2.9",
        "oslo.config>=9.0",
        "prometheus-client>=0.16",
        "PyYAML>=6.0",
        "requests>=2.28",
        "werkzeug>=2.2",
    ],
    extras_require={
        "libvirt": LIBVIRT,
        "postgresql": POSTGRESQL,
        "test": TEST,
        "docs": DOCS,
        "dev": TEST + DOCS + DEV,
    },
    entry_points={
        "console_scripts": ["plimsoll = agent.cli.main:main"],
        "plimsoll.drivers": [
            "fake = drivers.fake.driver:FakeDriver",
            "libvirt = drivers.libvirt.driver:LibvirtDriver",
        ],
    },
)
