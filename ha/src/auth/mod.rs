//! Who speaks, and whether it is said now: the keys of a pair ([`key`]), the word that every authenticated message
//! carries ([`word`]), and what has been proved about the peer ([`session`]). Pure; random numbers come from the caller.

pub mod key;
pub mod session;
pub mod word;

pub use key::{Key, KeyId, PairKeys, Purpose};
pub use session::{Freshness, Session};
pub use word::{Health, Kind, Signs, Spoken, Stamp, Word};
