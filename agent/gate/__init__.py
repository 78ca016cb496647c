"""The gate: decides for libvirt's hook whether a guest may start, and ends its claim afterwards."""
