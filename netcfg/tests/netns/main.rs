//! Real netlink in fresh network namespaces, checked with `ip`, `sysctl`, `ethtool` and traffic.
//!
//! Root only: `cargo test -p onearm-netcfg --test netns -- --ignored`. Without root they fail.

mod guards;
mod lab;
mod restoring;
