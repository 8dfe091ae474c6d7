//! Strict parsing of what a client sends.
