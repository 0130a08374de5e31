//! Names the kernel gives: interfaces, hardware addresses, settings of an interface.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Serialize};

/// A text that is no valid interface name, hardware address or leg setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {wanted}")]
pub struct InvalidName {
    text: String,
    wanted: &'static str,
}

impl InvalidName {
    fn new(text: &str, wanted: &'static str) -> Self {
        Self {
            text: text.to_owned(),
            wanted,
        }
    }
}

macro_rules! text_serde {
    ($name:ty) => {
        impl TryFrom<String> for $name {
            type Error = InvalidName;
            fn try_from(text: String) -> Result<Self, InvalidName> {
                text.parse()
            }
        }
        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.to_string()
            }
        }
    };
}

/// Address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4
    Ipv4,
    /// IPv6
    Ipv6,
}

impl Family {
    /// Both families, in order.
    pub const BOTH: [Self; 2] = [Self::Ipv4, Self::Ipv6];

    /// Family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::Ipv4 } else { Self::Ipv6 }
    }

    /// As the kernel names it in `/proc/sys/net`.
    fn as_str(self) -> &'static str {
        match self {
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
        }
    }
}

/// Name of an interface: 1 to 15 bytes, printable, without `/`, `:` and white space, not `.` or `..`.
///
/// The kernel's own rule (`dev_valid_name`), a little stricter: a name can be used in a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IfName(String);

impl IfName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`InvalidName`] if the kernel would not accept it.
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        let sound = (1..=15).contains(&text.len())
            && !matches!(text, "." | "..")
            && text
                .bytes()
                .all(|b| b.is_ascii_graphic() && !matches!(b, b'/' | b':'));
        if sound {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidName::new(text, "an interface name"))
        }
    }

    /// The loopback interface, as rules name locally generated traffic.
    pub fn loopback() -> Self {
        Self("lo".to_owned())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for IfName {
    type Err = InvalidName;
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        Self::new(text)
    }
}

impl fmt::Display for IfName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

text_serde!(IfName);

/// An Ethernet hardware address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Whether a frame to it reaches one host: neither zero nor a group address.
    pub fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ":" };
            write!(f, "{separator}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Mac {
    type Err = InvalidName;
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let invalid = || InvalidName::new(text, "a hardware address");
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|p| p.len() == 2).ok_or_else(invalid)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| invalid())?;
        }
        if parts.next().is_some() {
            Err(invalid())
        } else {
            Ok(Self(bytes))
        }
    }
}

text_serde!(Mac);

/// A setting the kernel keeps per interface, written as `ipv4.conf.send_redirects`: the sysctl
/// `net.ipv4.conf.LEG.send_redirects` without the leg.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LegSysctl {
    family: Family,
    part: Part,
    name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Part {
    Conf,
    Neigh,
}

impl Part {
    fn as_str(self) -> &'static str {
        match self {
            Self::Conf => "conf",
            Self::Neigh => "neigh",
        }
    }
}

impl LegSysctl {
    /// `ipv4.conf.send_redirects`. The kernel sends redirects if this *or* `all` is set.
    pub fn send_redirects() -> Self {
        Self {
            family: Family::Ipv4,
            part: Part::Conf,
            name: "send_redirects".to_owned(),
        }
    }

    /// `ipv4.neigh.base_reachable_time_ms`: how long a neighbour is trusted without being asked, in milliseconds
    /// (the kernel draws a time between half and one and a half of it).
    pub fn base_reachable_time_ms() -> Self {
        Self {
            family: Family::Ipv4,
            part: Part::Neigh,
            name: "base_reachable_time_ms".to_owned(),
        }
    }

    /// Path below `/proc/sys`.
    pub(crate) fn path(&self, leg: &IfName) -> String {
        format!(
            "net/{}/{}/{leg}/{}",
            self.family.as_str(),
            self.part.as_str(),
            self.name
        )
    }
}

impl FromStr for LegSysctl {
    type Err = InvalidName;
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let invalid = || InvalidName::new(text, "a leg setting (ipv4|ipv6 . conf|neigh . name)");
        let mut parts = text.split('.');
        let (Some(family), Some(part), Some(name), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(invalid());
        };
        let family = Family::BOTH
            .into_iter()
            .find(|f| f.as_str() == family)
            .ok_or_else(invalid)?;
        let part = [Part::Conf, Part::Neigh]
            .into_iter()
            .find(|p| p.as_str() == part)
            .ok_or_else(invalid)?;
        let sound = !name.is_empty()
            && name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if sound {
            Ok(Self {
                family,
                part,
                name: name.to_owned(),
            })
        } else {
            Err(invalid())
        }
    }
}

impl fmt::Display for LegSysctl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.family.as_str(), self.part.as_str(), self.name)
    }
}

text_serde!(LegSysctl);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_that_could_leave_a_path_are_refused() {
        for bad in ["", ".", "..", "a/b", "a b", "a:1", "0123456789abcdef", "ü"] {
            assert!(IfName::new(bad).is_err(), "{bad}");
        }
        for good in ["eth0", "eth0.10", "br-lan", "0123456789abcde"] {
            assert_eq!(IfName::new(good).unwrap().as_str(), good);
        }
    }

    #[test]
    fn hardware_addresses_round_trip() {
        let mac: Mac = "02:00:0a:ff:10:01".parse().unwrap();
        assert_eq!(mac.to_string(), "02:00:0a:ff:10:01");
        assert!(mac.is_unicast());
        assert!(!"ff:ff:ff:ff:ff:ff".parse::<Mac>().unwrap().is_unicast());
        for bad in [
            "",
            "02",
            "02:00:0a:ff:10",
            "02:00:0a:ff:10:01:02",
            "2:0:a:f:1:1",
            "zz:00:0a:ff:10:01",
        ] {
            assert!(bad.parse::<Mac>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_leg_setting_names_family_part_and_name_only() {
        let key: LegSysctl = "ipv4.conf.send_redirects".parse().unwrap();
        assert_eq!(key, LegSysctl::send_redirects());
        assert_eq!(
            key.path(&IfName::new("eth0.10").unwrap()),
            "net/ipv4/conf/eth0.10/send_redirects"
        );
        for bad in [
            "ipv4.conf",
            "ipv4.conf.all.forwarding",
            "ipv5.conf.x",
            "ipv4.route.x",
            "ipv4.conf.",
            "ipv4.conf.../x",
        ] {
            assert!(bad.parse::<LegSysctl>().is_err(), "{bad}");
        }
    }
}
