//! Map types and the packet logic of onearm's dataplane: plain `no_std` Rust that runs in the eBPF programs and,
//! unchanged, in `cargo test`.
#![no_std]

pub mod maps;
