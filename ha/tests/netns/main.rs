//! The driver on real interfaces: two nodes against each other and against keepalived and FRR, in namespaces, over IPv4
//! and IPv6.
//!
//! `cargo test -p onearm-ha --test netns -- --ignored --test-threads=1`, as root.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panic")]

mod authenticated;
mod frr;
mod interop;
mod ipv6;
mod lab;
mod membership;
mod node;
mod pair;
mod process;
mod reception;
mod two_arms;
