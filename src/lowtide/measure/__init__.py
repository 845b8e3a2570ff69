"""What a step and an optimizer hold and cost, measured or worked out beforehand on the device they run on."""
