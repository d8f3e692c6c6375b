"""What setup.cfg cannot say: the wheel carries experiments/ inside the package, as
`orchestrator/shipped/`.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["orchestrator*", "analysis*"]), "orchestrator.shipped"],
    package_dir={"orchestrator.shipped": "experiments"},
)
