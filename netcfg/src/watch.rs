//! A live picture of the legs: links, addresses, neighbours, routes.

mod driver;
mod picture;
mod view;

pub(crate) use driver::{Wake, Watcher, now};
pub use picture::{
    LegPicture, LinkPicture, MirrorRoute, NextHop, Picture, PictureClosed, Presence, wait_for_leg,
};
