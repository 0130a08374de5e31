//! What a device does on its own to the frames that pass through it.

use std::{collections::BTreeMap, fs, path::Path};

use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    kernel::Kernel,
    name::{IfName, Mac},
    netlink::link::LinkMessage,
};

/// Generic receive offload, in software.
pub const GRO: &str = "rx-gro";
/// Generic receive offload, by the device.
pub const GRO_HW: &str = "rx-gro-hw";
/// Generic receive offload along forwarding paths.
pub const GRO_LIST: &str = "rx-gro-list";
/// UDP aggregation along forwarding paths.
pub const GRO_UDP: &str = "rx-udp-gro-forwarding";
/// Large receive offload.
pub const LRO: &str = "rx-lro";
/// VLAN tags taken out of received frames.
pub const VLAN_RX: &str = "rx-vlan-hw-parse";
/// Tags of providers taken out of received frames.
pub const PROVIDER_VLAN_RX: &str = "rx-vlan-stag-hw-parse";
/// VLAN tags put into transmitted frames by the device.
pub const VLAN_TX: &str = "tx-vlan-hw-insert";
/// Checksums of transmitted frames finished by the device.
pub const CHECKSUM_TX: &str = "tx-checksum-ip-generic";

/// Offloads a leg needs for a program attached in generic mode: frames must reach it one by one.
pub fn for_generic_attach() -> BTreeMap<String, bool> {
    [GRO, GRO_HW, GRO_LIST, GRO_UDP, LRO]
        .map(|feature| (feature.to_owned(), false))
        .into()
}

/// Offloads a leg without a VLAN needs for any program: a tag that the device has taken out of a frame is not seen, and the frame
/// of another VLAN looks like the leg's own.
pub fn for_tags() -> BTreeMap<String, bool> {
    [VLAN_RX, PROVIDER_VLAN_RX]
        .map(|feature| (feature.to_owned(), false))
        .into()
}

/// What is known of a device, for status and warnings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Interface index.
    pub ifindex: u32,
    /// Hardware address.
    pub mac: Option<Mac>,
    /// Largest packet, in bytes.
    pub mtu: u32,
    /// Driver (`virtio_net`), or the kind of a virtual device (`veth`).
    pub driver: Option<String>,
    /// Carrier, as the driver says at this moment (`ETHTOOL_GLINK`).
    pub carrier: bool,
    /// Offload features switched on or that could be, by the kernel's names.
    pub offloads: BTreeMap<String, OffloadReport>,
}

/// One offload feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffloadReport {
    /// Switched on.
    pub active: bool,
    /// Can be switched.
    pub changeable: bool,
}

impl Kernel {
    /// Reports on an interface; none if it does not exist.
    ///
    /// # Errors
    /// [`Error::List`], [`Error::Ethtool`].
    pub fn device_report(&mut self, name: &IfName) -> Result<Option<DeviceReport>, Error> {
        let Some(link) = self.links()?.into_iter().find(|link| link.name == *name) else {
            return Ok(None);
        };
        let ethtool = self.ethtool()?;
        let failed = |operation| {
            move |source| Error::Ethtool {
                operation,
                ifname: name.clone(),
                source,
            }
        };
        let features = ethtool
            .features(link.ifindex)
            .map_err(failed("read the offloads"))?;
        let carrier = ethtool
            .carrier(link.ifindex)
            .map_err(failed("read the carrier"))?;
        let offloads = features.changeable.union(&features.active).map(|feature| {
            let (active, changeable) = (
                features.active.contains(feature),
                features.changeable.contains(feature),
            );
            (feature.clone(), OffloadReport { active, changeable })
        });
        Ok(Some(DeviceReport {
            ifindex: link.ifindex,
            mac: link.mac,
            mtu: link.mtu,
            driver: driver(&link),
            carrier: link.up && carrier,
            offloads: offloads.collect(),
        }))
    }
}

/// The kind of a virtual device, else the driver bound to the device on its bus.
fn driver(link: &LinkMessage) -> Option<String> {
    let bound = |(bus, device): &(String, String)| {
        let driver = fs::read_link(
            Path::new("/sys/bus")
                .join(bus)
                .join("devices")
                .join(device)
                .join("driver"),
        )
        .ok()?;
        Some(driver.file_name()?.to_string_lossy().into_owned())
    };
    link.kind.clone().or_else(|| link.parent.as_ref().and_then(bound))
}
