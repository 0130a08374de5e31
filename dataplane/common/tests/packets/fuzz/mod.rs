//! Frames to send at random, and a second, naive implementation of the contract ([`expect`]) that says what must become of each.

pub mod changes;
pub mod clients;
pub mod draw;
pub mod expect;
pub mod judge;
pub mod read;
pub mod script;
pub mod setups;
pub mod write;
