//! The lab: labs in network namespaces, what goes wrong in them, and how it is measured.
//!
//! [`topology::OneArm`] is the classic one-arm drawing; [`node`] runs onearm or one of its peers in the nodes' place;
//! [`measure`] holds probers, samplers and captures; [`scenario`] the runs of `onearm-lab`.

pub mod clock;
pub mod demo;
pub mod kernel_state;
pub mod lab;
pub mod measure;
pub mod netns;
pub mod node;
pub mod packet;
pub mod process;
pub mod report;
pub mod scenario;
pub mod service;
pub mod shell;
pub mod switch;
pub mod topology;
pub mod traffic;
pub mod vm;
pub mod xdp;

pub use lab::Lab;
pub use netns::Namespace;
pub use switch::Switch;
pub use topology::OneArm;
