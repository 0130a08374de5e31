//! Values with a form of their own: names, addresses, prefixes, durations, ports.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::Ipv4Net;
use toml::de::DeValue;

use super::limits;
use super::port_range::{PortRange, PortRangeError};
use super::walk::{Field, Walk};

const ADDRESS_REMEDY: &str = "write four numbers from 0 to 255, for example \"192.168.100.100\"";
const IPV6: &str = "IPv6 is not in this build";

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

    /// A unicast address.
    pub(super) fn address(&mut self, field: &Field<'_>) -> Option<Ipv4Addr> {
        let text = self.text(field)?;
        self.address_of(field, text)
    }

    /// A unicast address that is `text`, a part of the field.
    pub(super) fn address_of(&mut self, field: &Field<'_>, text: &str) -> Option<Ipv4Addr> {
        let Ok(address) = text.parse::<Ipv4Addr>() else {
            let (rule, message) = if text.parse::<Ipv6Addr>().is_ok() {
                ("not-in-this-build", IPV6)
            } else if text.contains(|c: char| c.is_ascii_alphabetic()) {
                ("address", "not an address; host names are never resolved")
            } else {
                ("address", "not an IPv4 address")
            };
            self.error(field, rule, message, ADDRESS_REMEDY);
            return None;
        };
        if let Some(what) = not_unicast(address) {
            self.error(field, "address", what, "write the address of one host");
            return None;
        }
        Some(address)
    }

    /// An address with the length of its network, `192.168.100.1/24`.
    pub(super) fn interface_address(&mut self, field: &Field<'_>) -> Option<Ipv4Net> {
        let net = self.network(field)?;
        if !(1..=30).contains(&net.prefix_len()) {
            self.error(
                field,
                "prefix",
                "the network of a gateway has 1 to 30 bits",
                "write for example \"192.168.100.1/24\"",
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
    pub(super) fn prefix(&mut self, field: &Field<'_>) -> Option<Ipv4Net> {
        let net = self.network(field)?;
        if net.addr() != net.network() {
            let remedy = format!("write \"{}\", or \"{}/32\" for one host", net.trunc(), net.addr());
            self.error(field, "prefix", "has bits set behind the prefix length", remedy);
            return None;
        }
        Some(net)
    }

    fn network(&mut self, field: &Field<'_>) -> Option<Ipv4Net> {
        let text = self.text(field)?;
        if let Ok(net) = text.parse::<Ipv4Net>() {
            return Some(net);
        }
        let (rule, message, remedy) =
            if text.parse::<ipnet::Ipv6Net>().is_ok() || text.parse::<Ipv6Addr>().is_ok() {
                (
                    "not-in-this-build",
                    IPV6.to_owned(),
                    "write an IPv4 prefix, for example \"192.168.100.0/24\"".to_owned(),
                )
            } else if text.parse::<Ipv4Addr>().is_ok() {
                (
                    "prefix",
                    "the prefix length is missing".to_owned(),
                    format!("write \"{text}/24\", or the length your network has"),
                )
            } else {
                (
                    "prefix",
                    "not an IPv4 prefix".to_owned(),
                    "write address/length, for example \"192.168.100.0/24\"".to_owned(),
                )
            };
        self.error(field, rule, message, remedy);
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

fn not_unicast(address: Ipv4Addr) -> Option<&'static str> {
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
