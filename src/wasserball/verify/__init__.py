"""Certificates that an image lies in the ball, from a transport plan or from the two images alone."""

from wasserball.verify.certificate import Certificate, verify

__all__ = ["Certificate", "verify"]
