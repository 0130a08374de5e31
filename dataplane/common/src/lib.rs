//! Map types and the packet logic of onearm's dataplane: plain `no_std` Rust that runs in the eBPF programs and,
//! unchanged, in `cargo test`.
//!
//! | the packet's way | modules |
//! |---|---|
//! | frame in, flow? | [`receive`], [`arp`], [`nd`], [`established`] with [`tcp`] |
//! | no flow | [`miss`], [`transit`], [`relay`], [`answer`] with [`refusal`] |
//! | new flow | [`mss`], [`limits`], [`schedule`], [`persistence`], [`evict`], [`create`], [`search`] |
//! | servers that answer themselves | [`direct`], [`tunnel`] |
//! | frame out | [`transmit`], [`egress`] |
//! | what the peer is to know | [`tell`] |
//! | with the help of user space | [`fragment`], [`help`] |
//! | on a server | [`decap`] |
//! | what it stands on | [`addr`], [`packet`], [`wire`], [`header`], [`checksum`], [`hash`], [`table`], [`flow`], [`tables`], [`work`], [`phase`] |
//! | measuring | [`mod@bench`] |
//! | shared with user space | [`maps`], [`flow`], [`table`], [`counter`], [`event`], [`refusal`], [`persistence`] |
#![no_std]
#![expect(clippy::pub_underscore_fields, reason = "explicit padding of map types")]
#![expect(
    clippy::cast_possible_truncation,
    reason = "arithmetic on hash bits and wire fields cuts on purpose"
)]
#![expect(
    clippy::inline_always,
    reason = "the kernel's verifier wants one function a program"
)]

#[cfg(test)]
extern crate std;

pub mod addr;
pub mod answer;
pub mod arp;
pub mod bench;
pub mod checksum;
pub mod counter;
pub mod create;
pub mod decap;
pub mod direct;
pub mod egress;
pub mod established;
pub mod event;
pub mod evict;
pub mod flow;
pub mod fragment;
pub mod hash;
pub mod header;
pub mod help;
pub mod icmp_error;
pub mod limits;
pub mod maps;
pub mod miss;
pub mod mss;
pub mod nd;
pub mod packet;
pub mod permission;
pub mod persistence;
pub mod phase;
#[cfg(feature = "user")]
mod pod;
pub mod receive;
pub mod refusal;
pub mod relay;
pub mod schedule;
pub mod search;
pub mod table;
pub mod tables;
pub mod tcp;
pub mod tell;
pub mod transit;
pub mod transmit;
pub mod tunnel;
pub mod wire;
pub mod work;
