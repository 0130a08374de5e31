//! The switch: a bridge in a namespace of its own, with ports that can fail.

use std::time::Duration;

use anyhow::Result;

use crate::netns::Namespace;

/// Ports in these sets lose frames: all of them, or adverts coming from the port, or adverts or all going to it.
const FAULTS: &str = "table bridge lab {
  set silent { type ifname; }
  set mute { type ifname; }
  set deaf { type ifname; }
  set starved { type ifname; }
  chain forward {
    type filter hook forward priority 0;
    iifname @silent drop
    oifname @silent drop
    iifname @mute ip protocol 112 drop
    oifname @deaf ip protocol 112 drop
    oifname @starved drop
  }
}";

/// How long a snooping switch knows a member that does not renew its membership: two and a half of its questions.
pub const MEMBERSHIP: Duration = Duration::from_secs(5);

/// What the bridge does with addresses it has to learn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Variant {
    /// Learns and ages as switches do.
    #[default]
    Learning,
    /// Ageing time 0: forgets at once and floods every frame to every port.
    Flooding,
    /// Multicast snooping with a querier of both families: groups reach joined ports only, and memberships end after
    /// [`MEMBERSHIP`].
    Snooping,
}

/// In hundredths of a second: a question every two seconds, to be answered within half a one.
const SNOOPING: &str = "mcast_snooping 1 mcast_query_interval 200 mcast_query_response_interval 50 \
                        mcast_startup_query_interval 50 mcast_membership_interval 500 mcast_querier_interval 500";

/// A bridge with cuttable ports. The port of namespace `x` is called `p-x`.
#[derive(Clone, Debug)]
pub struct Switch {
    ns: Namespace,
}

impl Switch {
    /// Makes the bridge inside `ns`.
    ///
    /// # Errors
    /// When the kernel refuses a part of it.
    pub fn create(ns: Namespace, variant: Variant) -> Result<Self> {
        ns.run("ip link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0")?;
        // On by default, and then bridged frames with an unfinished checksum vanish silently.
        for family in ["ip", "ip6", "arp"] {
            let key = format!("net.bridge.bridge-nf-call-{family}tables");
            if ns.read_sysctl(&key).is_ok() {
                ns.sysctl(&key, "0")?;
            }
        }
        ns.exec(&["nft", FAULTS])?;
        let switch = Self { ns };
        switch.set_variant(variant)?;
        switch.ns.run("ip link set br0 up")?;
        Ok(switch)
    }

    /// Changes the variant of a running switch.
    ///
    /// # Errors
    /// When `ip link` refuses.
    pub fn set_variant(&self, variant: Variant) -> Result<()> {
        let (ageing, snooping) = match variant {
            Variant::Learning => ("30000", "mcast_snooping 0"),
            Variant::Flooding => ("0", "mcast_snooping 0"),
            Variant::Snooping => ("30000", SNOOPING),
        };
        if variant == Variant::Snooping {
            // Without a link-local address nobody is asked by MLD, and then IPv6 groups reach every port.
            self.ns.sysctl("net.ipv6.conf.br0.accept_dad", "0")?;
            self.ns.sysctl("net.ipv6.conf.br0.disable_ipv6", "0")?;
        }
        self.ns.run(&format!(
            "ip link set br0 type bridge ageing_time {ageing} {snooping}"
        ))?;
        if variant == Variant::Snooping {
            // From then on groups reach every port for the time to respond, so that was set before.
            self.ns.run("ip link set br0 type bridge mcast_querier 1")?;
        }
        Ok(())
    }

    /// Everything that is plugged in from now on is in VLAN `vlan`, and knows nothing of it.
    ///
    /// # Errors
    /// When the kernel's bridges know no VLANs.
    pub fn set_vlan(&self, vlan: u16) -> Result<()> {
        self.ns
            .run(&format!(
                "ip link set br0 type bridge vlan_filtering 1 vlan_default_pvid {vlan}"
            ))
            .map(drop)
    }

    /// The port of `short` carries `vlan` with its tag, and nothing else.
    ///
    /// # Errors
    /// When `bridge` refuses.
    pub fn trunk(&self, short: &str, vlan: u16) -> Result<()> {
        let port = Self::port(short);
        self.ns.run(&format!("bridge vlan del dev {port} vid {vlan}"))?;
        self.ns
            .run(&format!("bridge vlan add dev {port} vid {vlan}"))
            .map(drop)
    }

    /// Beside its VLANs the port of `short` carries an untagged network, VLAN 1.
    ///
    /// # Errors
    /// When `bridge` refuses.
    pub fn add_untagged(&self, short: &str) -> Result<()> {
        let port = Self::port(short);
        self.ns
            .run(&format!("bridge vlan add dev {port} vid 1 pvid untagged"))
            .map(drop)
    }

    /// The port of `short` leaves `vlan` for the untagged network.
    ///
    /// # Errors
    /// When `bridge` refuses.
    pub fn leave_vlan(&self, short: &str, vlan: u16) -> Result<()> {
        let port = Self::port(short);
        self.ns.run(&format!("bridge vlan del dev {port} vid {vlan}"))?;
        self.add_untagged(short)
    }

    /// The namespace the bridge is in.
    pub fn ns(&self) -> &Namespace {
        &self.ns
    }

    /// Name of the port that leads to namespace `short`.
    pub fn port(short: &str) -> String {
        format!("p-{short}")
    }

    /// Plugs `far` in: its interface `ifname` with `mac` appears on port `p-SHORT`. Checksums are finished before
    /// frames enter the cable on either side, because XDP programs see frames as they are.
    ///
    /// # Errors
    /// When the kernel refuses a part of it.
    pub fn plug(&self, short: &str, far: &Namespace, ifname: &str, mac: &str) -> Result<()> {
        let port = Self::port(short);
        self.ns.run(&format!(
            "ip link add {port} type veth peer name {ifname} address {mac} netns {}",
            far.name()
        ))?;
        self.ns.run(&format!("ethtool -K {port} tx off"))?;
        far.run(&format!("ethtool -K {ifname} tx off"))?;
        self.ns.run(&format!("ip link set {port} master br0 up"))?;
        far.run(&format!("ip link set {ifname} up"))?;
        Ok(())
    }

    /// Cuts the cable: the far side loses its carrier.
    ///
    /// # Errors
    /// When `ip link` refuses.
    pub fn cut(&self, short: &str) -> Result<()> {
        self.ns
            .run(&format!("ip link set {} down", Self::port(short)))
            .map(drop)
    }

    /// Mends what [`cut`](Self::cut) cut.
    ///
    /// # Errors
    /// When `ip link` refuses.
    pub fn mend(&self, short: &str) -> Result<()> {
        self.ns
            .run(&format!("ip link set {} up", Self::port(short)))
            .map(drop)
    }

    /// Loses every frame of the port in both directions while the carrier stays.
    ///
    /// # Errors
    /// When `nft` refuses.
    pub fn silence(&self, short: &str) -> Result<()> {
        self.element("add", "silent", short)
    }

    /// Ends [`silence`](Self::silence).
    ///
    /// # Errors
    /// When `nft` refuses.
    pub fn unsilence(&self, short: &str) -> Result<()> {
        self.element("delete", "silent", short)
    }

    /// Loses adverts (IP protocol 112) on their way *to* the port.
    ///
    /// # Errors
    /// When `nft` refuses.
    pub fn deafen(&self, short: &str) -> Result<()> {
        self.element("add", "deaf", short)
    }

    /// Ends [`deafen`](Self::deafen).
    ///
    /// # Errors
    /// When `nft` refuses.
    pub fn undeafen(&self, short: &str) -> Result<()> {
        self.element("delete", "deaf", short)
    }

    /// Loses adverts (IP protocol 112) that come *from* the port.
    ///
    /// # Errors
    /// When `nft` refuses.
    pub fn mute(&self, short: &str) -> Result<()> {
        self.element("add", "mute", short)
    }

    /// Ends [`mute`](Self::mute).
    ///
    /// # Errors
    /// When `nft` refuses.
    pub fn unmute(&self, short: &str) -> Result<()> {
        self.element("delete", "mute", short)
    }

    /// Loses every frame on its way *to* the port.
    ///
    /// # Errors
    /// When `nft` refuses.
    pub fn starve(&self, short: &str) -> Result<()> {
        self.element("add", "starved", short)
    }

    /// Ends [`starve`](Self::starve).
    ///
    /// # Errors
    /// When `nft` refuses.
    pub fn feed(&self, short: &str) -> Result<()> {
        self.element("delete", "starved", short)
    }

    fn element(&self, verb: &str, set: &str, short: &str) -> Result<()> {
        let port = Self::port(short);
        self.ns
            .exec(&[
                "nft",
                verb,
                "element",
                "bridge",
                "lab",
                set,
                &format!("{{ {port} }}"),
            ])
            .map(drop)
    }

    /// The port on which `mac` (colon form) was learned, if any.
    ///
    /// # Errors
    /// When `bridge` fails.
    pub fn learned_on(&self, mac: &str) -> Result<Option<String>> {
        let table = self.ns.run("bridge fdb show br br0")?;
        Ok(table
            .lines()
            .find(|l| l.starts_with(mac) && !l.contains("permanent"))
            .and_then(|l| l.split_whitespace().skip_while(|w| *w != "dev").nth(1))
            .map(str::to_owned))
    }
}
