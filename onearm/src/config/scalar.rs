//! Values with a form of their own: names, addresses, prefixes, durations, ports.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::IpNet;
use toml::de::DeValue;

use super::limits;
use super::port_range::{PortRange, PortRangeError};
use super::walk::{Field, Walk};

const ADDRESS_REMEDY: &str = "write for example \"192.168.100.100\" or \"2001:db8::100\"";
const NETWORK_REMEDY: &str =
    "write address/length, for example \"192.168.100.0/24\" or \"2001:db8:100::/64\"";

impl Walk<'_> {
    /// A name for something of the configuration: letters, digits, `-`, `_`, `.`.
    pub(super) fn name(&mut self, field: &Field<'_>) -> Option<String> {
        let text = self.text(field)?;
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if text.is_empty() || text.len() > limits::NAME_CHARS || !text.chars().all(good) {
            let remedy = format!("write 1 to {} of: letters a-z, digits, - _ .", limits::NAME_CHARS);
            self.error(field, "name", "not a name", remedy);
            return None;
        }
        Some(text.to_owned())
    }

    /// Name of a network interface, as the kernel allows it.
    pub(super) fn interface(&mut self, field: &Field<'_>) -> Option<String> {
        let text = self.text(field)?;
        let bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | ':');
        if text.is_empty()
            || text.len() > limits::INTERFACE_BYTES
            || matches!(text, "." | "..")
            || text.contains(bad)
        {
            let remedy = format!(
                "write its name as `ip link` shows it, at most {} bytes",
                limits::INTERFACE_BYTES
            );
            self.error(field, "interface", "not the name of an interface", remedy);
            return None;
        }
        Some(text.to_owned())
    }

    /// A unicast address with which hosts beyond a link can speak.
    pub(super) fn address(&mut self, field: &Field<'_>) -> Option<IpAddr> {
        let text = self.text(field)?;
        self.address_of(field, text)
    }

    /// [`Self::address`] that is `text`, a part of the field.
    pub(super) fn address_of(&mut self, field: &Field<'_>, text: &str) -> Option<IpAddr> {
        let address = self.host(field, text)?;
        if is_link_local(address) {
            self.error(
                field,
                "address",
                "a link-local address: without an interface it says nothing",
                "write a global or unique local address, for example \"2001:db8::100\"",
            );
            return None;
        }
        Some(address)
    }

    /// A unicast address, also one that only the hosts of a link know.
    pub(super) fn address_on_link(&mut self, field: &Field<'_>) -> Option<IpAddr> {
        let text = self.text(field)?;
        self.host(field, text)
    }

    fn host(&mut self, field: &Field<'_>, text: &str) -> Option<IpAddr> {
        let Ok(address) = text.parse::<IpAddr>() else {
            let message = if text.contains('%') {
                "an address with an interface; the leg says which one it is"
            } else if text.contains(|c: char| c.is_ascii_alphabetic()) && !text.contains(':') {
                "not an address; host names are never resolved"
            } else {
                "not an address"
            };
            self.error(field, "address", message, ADDRESS_REMEDY);
            return None;
        };
        if let Some(what) = not_unicast(address) {
            self.error(field, "address", what, "write the address of one host");
            return None;
        }
        Some(address)
    }

    /// An address with the length of its network, `192.168.100.1/24`.
    pub(super) fn interface_address(&mut self, field: &Field<'_>) -> Option<IpNet> {
        let net = self.network(field)?;
        // Networks of routers alone have no servers.
        let longest = net.max_prefix_len() - 2;
        if !(1..=longest).contains(&net.prefix_len()) {
            self.error(
                field,
                "prefix",
                format!("the network of a gateway has 1 to {longest} bits"),
                NETWORK_REMEDY,
            );
            return None;
        }
        if let Some(what) = not_unicast(net.addr()) {
            self.error(
                field,
                "address",
                what,
                "write the address of one host, then / and the bits of its network",
            );
            return None;
        }
        Some(net)
    }

    /// A prefix without host bits, `192.168.100.0/24`.
    pub(super) fn prefix(&mut self, field: &Field<'_>) -> Option<IpNet> {
        let net = self.network(field)?;
        if net.addr() != net.network() {
            let one = IpNet::from(net.addr());
            let remedy = format!("write \"{}\", or \"{one}\" for one host", net.trunc());
            self.error(field, "prefix", "has bits set behind the prefix length", remedy);
            return None;
        }
        Some(net)
    }

    fn network(&mut self, field: &Field<'_>) -> Option<IpNet> {
        let text = self.text(field)?;
        if let Ok(net) = text.parse::<IpNet>() {
            return Some(net);
        }
        let (message, remedy) = match text.parse::<IpAddr>() {
            Ok(address) => {
                let usual = if address.is_ipv4() { 24 } else { 64 };
                (
                    "the prefix length is missing",
                    format!("write \"{text}/{usual}\", or the length your network has"),
                )
            }
            Err(_) => ("not a prefix", NETWORK_REMEDY.to_owned()),
        };
        self.error(field, "prefix", message, remedy);
        None
    }

    /// A duration with its unit, in a range.
    pub(super) fn duration(
        &mut self,
        field: &Field<'_>,
        range: RangeInclusive<Duration>,
    ) -> Option<Duration> {
        const FORM: &str = "write a number and its unit, for example \"100ms\", \"2s\" or \"15m\"";
        let DeValue::String(text) = field.value else {
            let number = matches!(field.value, DeValue::Integer(_) | DeValue::Float(_));
            if number {
                self.error(field, "duration", "a duration without unit", FORM);
            } else {
                self.wrong_type(field, "a duration", FORM);
            }
            return None;
        };
        let Ok(duration) = humantime::parse_duration(text) else {
            self.error(field, "duration", "not a duration", FORM);
            return None;
        };
        if !range.contains(&duration) {
            let (least, most) = (
                humantime::format_duration(*range.start()),
                humantime::format_duration(*range.end()),
            );
            self.error(
                field,
                "range",
                "out of range",
                format!("write \"{least}\" to \"{most}\""),
            );
            return None;
        }
        Some(duration)
    }

    /// One port.
    pub(super) fn port(&mut self, field: &Field<'_>) -> Option<u16> {
        let number = self.integer(field, limits::PORT)?;
        Some(u16::try_from(number).expect("the range of ports was checked"))
    }

    /// A port or a range of ports: `80` or `"8000-8100"`.
    pub(super) fn ports(&mut self, field: &Field<'_>) -> Option<PortRange> {
        match field.value {
            DeValue::String(_) => self.port_range(field),
            DeValue::Integer(_) => {
                let port = self.port(field)?;
                PortRange::new(port, port).ok()
            }
            DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Array(_)
            | DeValue::Table(_) => {
                self.wrong_type(field, "a port or a range", "write 80 or \"8000-8100\"");
                None
            }
        }
    }

    /// A range of ports as a text, `"8000-8100"`.
    pub(super) fn port_range(&mut self, field: &Field<'_>) -> Option<PortRange> {
        let text = self.text(field)?;
        match text.parse() {
            Ok(range) => Some(range),
            Err(error @ (PortRangeError::Form | PortRangeError::Order)) => {
                self.error(
                    field,
                    "port",
                    error.to_string(),
                    "write \"8000-8100\": the first, a hyphen, the last",
                );
                None
            }
            Err(error @ PortRangeError::Port) => {
                self.error(field, "range", error.to_string(), "write ports from 1 to 65535");
                None
            }
        }
    }
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

fn not_unicast(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => not_unicast4(address),
        IpAddr::V6(address) => not_unicast6(address),
    }
}

fn not_unicast4(address: Ipv4Addr) -> Option<&'static str> {
    if address.is_loopback() {
        Some("a loopback address never leaves a host")
    } else if address.is_multicast() {
        Some("a multicast address")
    } else if address.octets()[0] == 0 {
        Some("an address of network 0.0.0.0/8")
    } else if address.octets()[0] >= 240 {
        Some("a broadcast or reserved address")
    } else {
        None
    }
}

fn not_unicast6(address: Ipv6Addr) -> Option<&'static str> {
    if address.is_loopback() {
        Some("a loopback address never leaves a host")
    } else if address.is_multicast() {
        Some("a multicast address")
    } else if address.is_unspecified() {
        Some("the unspecified address")
    } else if address.to_ipv4_mapped().is_some() {
        Some("an IPv4 address written as IPv6; write the IPv4 address")
    } else {
        None
    }
}
