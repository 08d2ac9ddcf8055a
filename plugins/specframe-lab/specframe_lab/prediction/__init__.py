"""What a pair's speed would be on a device, by what its forwards read and compute."""
