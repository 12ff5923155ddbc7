"""What an operator takes: the local playground (`deploy.local`); images, manifests and unit files join it here."""
