"""The test kit: fake and small random models, suites that a plugin's tests inherit, and a pytest plugin.

=================================  ==================================================================
:mod:`specframe.testing.fakes`     models and drafters on which logic is tested in milliseconds
:mod:`specframe.testing.zoo`       small random models of real architectures
:mod:`specframe.testing.harness`   decode requests, hold them against the reference decoder, count
:mod:`specframe.testing.conformance`  one suite per role, to subclass
:mod:`specframe.testing.pytest_plugin`  fixtures and markers, active wherever specframe is installed
=================================  ==================================================================
"""
