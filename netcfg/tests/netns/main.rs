//! Real netlink in fresh network namespaces, checked with `ip`, `sysctl`, `ethtool` and traffic.
//!
//! Root only: `cargo test -p onearm-netcfg --test netns -- --ignored`. Without root they fail.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod guards;
mod lab;
mod living;
mod restoring;
