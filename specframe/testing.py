"""The former place of the test kit, which is a distribution of its own."""

raise ImportError(
    "specframe.testing is the package specframe_testing, of the distribution specframe-testing: pip install specframe-testing"
)
