//! The two main processes tell each other which configuration they run, and the MACs of their legs: one UDP datagram a
//! second between the nodes' own addresses on the leg of the adverts.
//!
//! Unauthenticated, whatever the adverts are: a stranger who forges one can make an operator compare two files, and have what a
//! Standby receives by mistake on another leg relayed to a MAC of its own. It goes when the authenticated stream between
//! the nodes exists.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use onearm_types::NodeId;
use serde::{Deserialize, Serialize};
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Pause between hellos.
const PERIOD: Duration = Duration::from_secs(1);
/// A peer that was silent for so long is unknown again.
const FORGET_AFTER: Duration = Duration::from_secs(5);
/// Longest datagram in bytes; a longer one is cut by the kernel and then does not parse.
const MAX_LEN: usize = 8_192;

/// Longest text in a hello, bytes: a digest.
const MAX_TEXT: usize = 64;

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// Format, 1.
    pub(crate) format: u32,
    /// `name` of `node.toml`.
    pub(crate) name: String,
    /// `id` of `node.toml`.
    pub(crate) id: NodeId,
    /// Version of the daemon.
    pub(crate) version: String,
    /// Digest of the pair's configuration, hexadecimal.
    pub(crate) digest: String,
    /// MACs of the legs that carry traffic, by name.
    #[serde(default)]
    pub(crate) legs: BTreeMap<String, [u8; 6]>,
}

/// Format of [`Hello`].
pub(crate) const FORMAT: u32 = 1;

/// Exchanges hellos until the receiver of `heard` is gone. A missing or changing own address is waited for: the socket is
/// made anew after an error.
pub(crate) async fn exchange(
    own: SocketAddr,
    peer: SocketAddr,
    hello: watch::Receiver<Hello>,
    heard: watch::Sender<Option<Hello>>,
) {
    let mut tick = interval(PERIOD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut socket = None;
    let mut last: Option<Instant> = None;
    let mut buffer = [0; MAX_LEN];
    while !heard.is_closed() {
        if socket.is_none() {
            socket = UdpSocket::bind(own)
                .await
                .inspect_err(|error| tracing::debug!(%error, "hello socket"))
                .ok();
        }
        // Cancel-safe: a tick is not lost when the other branch ends first, and `recv_from` takes a datagram or nothing.
        tokio::select! {
            _ = tick.tick() => {
                let datagram = serde_json::to_vec(&*hello.borrow()).expect("strings and numbers are JSON");
                if let Some(s) = &socket
                    && let Err(error) = s.send_to(&datagram, peer).await
                {
                    tracing::debug!(%error, "hello not sent");
                    // A refused datagram is the peer's daemon being down; anything else may be our address gone.
                    if error.kind() != io::ErrorKind::ConnectionRefused {
                        socket = None;
                    }
                }
                if last.is_some_and(|at| at.elapsed() > FORGET_AFTER) {
                    last = None;
                    heard.send_replace(None);
                }
            }
            received = receive(socket.as_ref(), &mut buffer) => {
                if let Some(hello) = received.and_then(|(len, from)| accept(&buffer[..len], from, peer.ip())) {
                    last = Some(Instant::now());
                    heard.send_if_modified(|known| {
                        let new = known.as_ref() != Some(&hello);
                        *known = Some(hello);
                        new
                    });
                }
            }
        }
    }
}

async fn receive(socket: Option<&UdpSocket>, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
    match socket {
        Some(socket) => socket.recv_from(buffer).await.ok(),
        None => std::future::pending().await,
    }
}

fn accept(datagram: &[u8], from: SocketAddr, peer: IpAddr) -> Option<Hello> {
    let from_peer = from.ip() == peer;
    serde_json::from_slice::<Hello>(datagram)
        .ok()
        .filter(|h| from_peer && h.format == FORMAT && h.is_printable() && h.has_hosts())
}

impl Hello {
    /// Its texts go to logs and terminals, and anybody can forge them.
    fn is_printable(&self) -> bool {
        [&self.name, &self.version, &self.digest]
            .into_iter()
            .all(|text| text.len() <= MAX_TEXT && text.bytes().all(|byte| byte.is_ascii_graphic()))
    }

    /// Its MACs are neither groups nor nothing.
    fn has_hosts(&self) -> bool {
        self.legs.values().all(|mac| mac[0] & 1 == 0 && *mac != [0; 6])
    }
}

#[cfg(test)]
mod tests {
    use super::{FORMAT, Hello, MAX_LEN, accept};
    use onearm_types::NodeId;

    #[test]
    fn only_a_well_formed_hello_of_the_peer_is_taken() {
        let peer = "192.168.100.3".parse().unwrap();
        let hello = Hello {
            format: FORMAT,
            name: "lb2".into(),
            id: NodeId::new(2).unwrap(),
            version: "0.1.0".into(),
            digest: "ab".into(),
            legs: [("lan".to_owned(), [2, 0, 0, 0, 3, 2])].into(),
        };
        let bytes = serde_json::to_vec(&hello).unwrap();
        let from = |ip: &str| format!("{ip}:8470").parse().unwrap();
        assert_eq!(accept(&bytes, from("192.168.100.3"), peer), Some(hello.clone()));
        assert_eq!(accept(&bytes, from("192.168.100.9"), peer), None);
        assert_eq!(
            accept(&bytes[..bytes.len() - 1], from("192.168.100.3"), peer),
            None
        );
        for name in ["\u{1b}[2J", "lb 2", &"x".repeat(65)] {
            let forged = serde_json::to_vec(&Hello {
                name: name.to_owned(),
                ..hello.clone()
            })
            .unwrap();
            assert_eq!(accept(&forged, from("192.168.100.3"), peer), None, "{name:?}");
        }
        for mac in [[0; 6], [1, 0, 0x5e, 0, 0, 18], [0xff; 6]] {
            let mut forged = hello.clone();
            forged.legs.insert("wan".to_owned(), mac);
            let forged = serde_json::to_vec(&forged).unwrap();
            assert_eq!(accept(&forged, from("192.168.100.3"), peer), None, "{mac:?}");
        }
        // The longest there is: 64 legs with names of 63 characters.
        let mut longest = hello.clone();
        longest.legs = (0..64).map(|n| (format!("{n:063}"), [0xfe; 6])).collect();
        let longest = serde_json::to_vec(&longest).unwrap();
        assert!(longest.len() <= MAX_LEN, "{}", longest.len());
        let newer = serde_json::to_vec(&Hello {
            format: FORMAT + 1,
            ..hello
        })
        .unwrap();
        assert_eq!(accept(&newer, from("192.168.100.3"), peer), None);
    }
}
