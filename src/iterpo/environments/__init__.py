"""Games as pure functions of (scenario, transcript); one file each."""
