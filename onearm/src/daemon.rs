//! The main process of a node: wiring of configuration, kernel, dataplane, election, health and control.
//!
//! ```text
//! start ── node_loop ── node ──► plan ──► dataplane, netcfg          (a pass: what is wanted, minus what was done)
//!              │  ▲
//!              │  └── picture, health, stream, dataplane and kernel events
//!              └───── ha_link ◄──► ha_process                        (the other process)
//! keeper ─► flow table, stream                                        (ends silent flows, tells the peer of them; a thread)
//! beside ─► backend ──► board, dataplane, health                      (answers to `onearm`, on a thread of their own)
//! ```

mod authentication;
mod backend;
mod beside;
mod board;
mod clock;
mod epochs;
mod errands;
mod filters;
mod gates;
mod guests;
mod ha_link;
mod ha_process;
mod helping;
mod keeper;
mod kept;
mod legs;
mod node;
mod node_loop;
mod notices;
mod options;
mod owned;
mod plan;
mod probe;
mod recording;
mod scripts;
mod stance;
mod start;
mod streaming;
mod usage;

pub use start::main;
