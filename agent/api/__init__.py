"""The local API: HTTP and JSON on a Unix socket; the kernel says who asks."""
