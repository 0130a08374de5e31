//! Map types and the packet logic of onearm's dataplane: plain `no_std` Rust that runs in the eBPF programs and,
//! unchanged, in `cargo test`.
#![no_std]
#![expect(clippy::pub_underscore_fields, reason = "explicit padding of map types")]
#![expect(
    clippy::inline_always,
    reason = "the kernel's verifier wants one function a program"
)]

#[cfg(test)]
extern crate std;

pub mod counter;
pub mod event;
pub mod flow;
pub mod maps;
pub mod phase;
#[cfg(feature = "user")]
mod pod;
pub mod refusal;
