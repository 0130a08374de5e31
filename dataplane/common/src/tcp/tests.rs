use super::*;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}
use Side::{Client, Server};

/// Sender, flags, sequence, acknowledgement.
type Sent = (Side, u8, u32, u32);

/// Both directions as the two entries hold them.
#[derive(Clone, Copy)]
struct Flow {
    client: u8,
    server: u8,
    /// Of (client's, server's) entry.
    acks: (u32, u32),
}

impl Flow {
    const NEW: Self = Self {
        client: seen::OPENED,
        server: 0,
        acks: (0, 0),
    };

    fn sees(&mut self, from: Side, flags: u8, seq: u32, ack: u32) -> State {
        let reply = from == Server;
        let (own, other, expected_ack, acknowledged) = if reply {
            (self.server, self.client, self.acks.1, self.acks.0)
        } else {
            (self.client, self.server, self.acks.0, self.acks.1)
        };
        let before = Knowledge {
            own,
            other,
            expected_ack,
        };
        let segment = Segment {
            flags,
            seq,
            ack,
            believable: is_believable(seq, acknowledged),
        };
        let after = before.after(reply, segment);
        (self.client, self.server) = if reply {
            (after.other, after.own)
        } else {
            (after.own, after.other)
        };
        if after.expected_ack != before.expected_ack {
            self.acks = (after.expected_ack, after.expected_ack);
        }
        if after.is_confirmed(reply) {
            if !before.is_confirmed(reply) {
                self.acks.1 = seq;
            }
            let own_ack = if reply { &mut self.acks.1 } else { &mut self.acks.0 };
            if flags & (RST | SYN | ACK) == ACK {
                *own_ack = ack;
            }
        }
        assert_eq!(after.state(reply), state(TCP, self.client, self.server));
        after.state(reply)
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn each_exchange_leads_to_its_state() {
    const SA: u8 = SYN | ACK;
    const FA: u8 = FIN | ACK;
    let handshake = [(Client, SYN, 1, 0), (Server, SA, 100, 2), (Client, ACK, 2, 101)];
    let cases: [(&str, &[Sent], State); 21] = [
        ("nothing but the SYN", &[], State::HalfOpen),
        (
            "a blind ACK does not promote",
            &[(Client, ACK, 2, 7)],
            State::HalfOpen,
        ),
        (
            "an ACK of 0 before the SYN-ACK does not promote",
            &[(Client, ACK, 2, 0)],
            State::HalfOpen,
        ),
        ("SYN-ACK alone", &handshake[..2], State::HalfOpen),
        (
            "SYN-ACK, wrong ACK",
            &[handshake[0], handshake[1], (Client, ACK, 2, 100)],
            State::HalfOpen,
        ),
        ("handshake", &handshake, State::Established),
        (
            "the server's SYN-ACK sent twice changes nothing",
            &[handshake[0], handshake[1], handshake[2], handshake[1]],
            State::Established,
        ),
        (
            "a SYN on an established flow changes nothing",
            &[handshake[0], handshake[1], handshake[2], (Client, SYN, 900, 0)],
            State::Established,
        ),
        (
            "nor does a SYN-ACK after it, so that a forged one takes no time from the connection",
            &[
                handshake[0],
                handshake[1],
                handshake[2],
                (Client, SYN, 900, 0),
                (Server, SA, 5_000, 901),
            ],
            State::Established,
        ),
        (
            "a SYN-ACK after a believed RST: the server has begun anew",
            &[
                handshake[0],
                handshake[1],
                handshake[2],
                (Client, RST, 2, 0),
                (Client, SYN, 900, 0),
                (Server, SA, 5_000, 901),
            ],
            State::Established,
        ),
        (
            "a blind RST of the client",
            &[
                handshake[0],
                handshake[1],
                handshake[2],
                (Client, RST, 900_000, 0),
            ],
            State::Established,
        ),
        (
            "a blind RST of the server",
            &[
                handshake[0],
                handshake[1],
                handshake[2],
                (Server, RST, 900_000, 0),
            ],
            State::Established,
        ),
        (
            "a blind ACK of the client brings its own RST no nearer",
            &[
                handshake[0],
                handshake[1],
                handshake[2],
                (Client, ACK, 900_000, 77),
                (Client, RST, 900_000, 0),
            ],
            State::Established,
        ),
        (
            "one FIN is a half-close",
            &[handshake[0], handshake[1], handshake[2], (Client, FA, 2, 101)],
            State::Established,
        ),
        (
            "two FINs close",
            &[
                handshake[0],
                handshake[1],
                handshake[2],
                (Client, FA, 2, 101),
                (Server, FA, 101, 3),
            ],
            State::Closing,
        ),
        (
            "a RST closes",
            &[handshake[0], handshake[1], handshake[2], (Client, RST, 2, 0)],
            State::Closing,
        ),
        (
            "and a segment of the other side lifts it",
            &[
                handshake[0],
                handshake[1],
                handshake[2],
                (Client, RST, 2, 0),
                (Server, ACK, 101, 2),
            ],
            State::Established,
        ),
        (
            "and so does one of its own sender",
            &[
                handshake[0],
                handshake[1],
                handshake[2],
                (Client, RST, 2, 0),
                (Client, ACK, 2, 101),
            ],
            State::Established,
        ),
        (
            "a RST of a half-open flow closes it, whatever its number",
            &[handshake[0], handshake[1], (Client, RST, 900_000, 0)],
            State::Closing,
        ),
        (
            "a SYN-ACK opens nothing that both sides have closed",
            &[
                handshake[0],
                handshake[1],
                handshake[2],
                (Client, FA, 2, 101),
                (Server, FA, 101, 3),
                (Server, SA, 5_000, 3),
            ],
            State::Closing,
        ),
        (
            "a refused SYN closes",
            &[(Server, RST | ACK, 0, 2)],
            State::Closing,
        ),
    ];
    for (what, segments, want) in cases {
        let mut flow = Flow::NEW;
        for (from, flags, seq, ack) in segments {
            flow.sees(*from, *flags, *seq, *ack);
        }
        assert_eq!(state(TCP, flow.client, flow.server), want, "{what}");
    }
}

#[test]
fn a_flow_that_counts_for_its_client_counts_whatever_the_server_answers() {
    let mut flow = Flow {
        client: seen::OPENED | seen::COUNTED,
        ..Flow::NEW
    };
    for (from, flags, seq, ack) in [
        (Server, SYN | ACK, 100, 2),
        (Server, SYN | ACK, 200, 2),
        (Client, ACK, 2, 201),
        (Server, SYN | ACK, 900, 2),
    ] {
        flow.sees(from, flags, seq, ack);
        assert!(flow.client & seen::COUNTED != 0 && flow.server & seen::COUNTED == 0);
    }
}

#[test]
fn who_closed_first_is_remembered() {
    for (first, bits) in [(Client, (seen::FIN_FIRST, 0)), (Server, (0, seen::FIN_FIRST))] {
        let mut flow = Flow::NEW;
        let second = if first == Client { Server } else { Client };
        for from in [first, first, second] {
            flow.sees(from, FIN | ACK, 1, 1);
        }
        assert_eq!(
            (flow.client & seen::FIN_FIRST, flow.server & seen::FIN_FIRST),
            bits
        );
    }
}

/// Client and server have sequence numbers 101 and 901 when they close.
#[test]
fn b56_a_server_whose_fin_met_the_clients_on_the_way_keeps_time_wait() {
    let cases: [(&str, &[Sent], (bool, bool)); 6] = [
        (
            "the client closes, and the server after it",
            &[
                (Client, FIN | ACK, 101, 901),
                (Server, FIN | ACK, 901, 102),
                (Client, ACK, 102, 902),
            ],
            (true, false),
        ),
        (
            "the client closes, and the server later",
            &[
                (Client, FIN | ACK, 101, 901),
                (Server, ACK, 901, 102),
                (Server, FIN | ACK, 950, 102),
                (Client, ACK, 102, 951),
                (Server, FIN | ACK, 950, 102),
            ],
            (true, false),
        ),
        (
            "the FINs meet, the client's comes by first",
            &[
                (Client, FIN | ACK, 101, 901),
                (Server, FIN | ACK, 901, 101),
                (Client, ACK, 102, 902),
                (Server, ACK, 902, 102),
            ],
            (true, true),
        ),
        (
            "the FINs meet, and the server says so with its FIN again",
            &[
                (Client, FIN | ACK, 101, 901),
                (Server, FIN | ACK, 901, 101),
                (Server, FIN | ACK, 901, 102),
            ],
            (true, true),
        ),
        (
            "the FINs meet, the server's comes by first",
            &[
                (Server, FIN | ACK, 901, 101),
                (Client, FIN | ACK, 101, 901),
                (Server, ACK, 902, 102),
                (Client, ACK, 102, 902),
            ],
            (true, true),
        ),
        (
            "the server closes, and the client after it",
            &[
                (Server, FIN | ACK, 901, 101),
                (Client, FIN | ACK, 101, 902),
                (Server, ACK, 902, 102),
            ],
            (false, true),
        ),
    ];
    for (what, segments, want) in cases {
        let mut flow = Flow::NEW;
        flow.sees(Server, SYN | ACK, 900, 101);
        flow.sees(Client, ACK, 101, 901);
        flow.sees(Server, ACK, 901, 101);
        for (from, flags, seq, ack) in segments {
            flow.sees(*from, *flags, *seq, *ack);
        }
        let first = |side: u8| side & seen::FIN_FIRST != 0;
        assert_eq!((first(flow.client), first(flow.server)), want, "{what}");
    }
}

proptest! {
    #[test]
    fn without_the_servers_sequence_nobody_promotes(
        isn: u32,
        segments in prop::collection::vec((any::<bool>(), any::<u8>(), any::<u32>(), any::<u32>()), 0..20),
    ) {
        let mut flow = Flow::NEW;
        flow.sees(Server, SYN | ACK, isn, 0);
        for (server, flags, seq, ack) in segments {
            let ack = if ack == isn.wrapping_add(1) { ack ^ 1 } else { ack };
            let flags = if server { flags & !SYN } else { flags };
            flow.sees(if server { Server } else { Client }, flags, seq, ack);
            prop_assert!(flow.client & seen::CONFIRMED == 0);
        }
    }
}
