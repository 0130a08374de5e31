//! ARP and Neighbour Discovery.

use super::{Scene, Want};
use crate::fuzz::{
    read::{be16, is_special},
    write::{Draft, leave, octets, packet, pseudo, sum},
};
use onearm_dataplane_common::maps::owned;

impl Scene<'_> {
    pub(super) fn arp(&self) -> Want {
        let Some(request) = self.frame.get(self.link.l3..self.link.l3 + 28) else {
            return Want::Pass;
        };
        if request[..6] != [0, 1, 8, 0, 6, 4] {
            return Want::Pass;
        }
        let (sender_mac, sender, target) = (
            &request[8..14],
            crate::fuzz::read::address(&request[14..18]),
            crate::fuzz::read::address(&request[24..28]),
        );
        if self.owned(sender).is_some() {
            return if self.leased && *sender_mac != self.leg.mac {
                Want::Drop
            } else {
                Want::Pass
            };
        }
        let asked = be16(request, 6) == 1 && self.owned(target).is_some_and(|o| o.leg == self.leg.id);
        if !asked {
            return Want::Pass;
        }
        if sender_mac[0] & 1 != 0 || (is_special(sender) && octets(sender) != [0; 4]) {
            return Want::Drop;
        }
        if !self.leased {
            return Want::Pass;
        }
        let mut answer = Draft::new(self.frame.to_vec());
        answer.write(self.link.l3 + 6, &[0, 2]);
        answer.write(
            self.link.l3 + 8,
            &[&self.leg.mac[..], &request[24..28], sender_mac, &request[14..18]].concat(),
        );
        Want::Sent(answer.leave(&self.link, &self.back()))
    }

    pub(super) fn nd(&self, header: &[u8], len: usize) -> Want {
        let l4 = self.link.l3 + 40;
        let message = &self.frame[l4..l4 + len];
        let (from, to, target) = (
            crate::fuzz::read::address(&header[8..24]),
            crate::fuzz::read::address(&header[24..40]),
            crate::fuzz::read::address(&message[8..24]),
        );
        let asks = message[0] == 135;
        let claims = self.owned(from).is_some() || (!asks && self.owned(target).is_some());
        if claims {
            let heard = self.leased && self.link.from != self.leg.mac;
            return if header[7] != 255 || heard {
                Want::Drop
            } else {
                Want::Pass
            };
        }
        let Some(owner) = self.owned(target).filter(|o| asks && o.leg == self.leg.id) else {
            return Want::Pass;
        };
        let mut group = octets("ff02::1:ff00:0".parse().expect("group"));
        group[13..].copy_from_slice(&octets(target)[13..]);
        let to_group = octets(to) == group;
        if !to_group && to != target {
            return Want::Pass;
        }
        let probe = from.is_unspecified();
        let mut options = &message[24..];
        let mut sane = header[7] == 255 && message[1] == 0 && len <= 64 && len.is_multiple_of(8);
        sane &= if probe { to_group } else { !is_special(from) };
        sane &= (pseudo(from, to, 58, len) + sum(message)).is_multiple_of(0xffff);
        while sane && !options.is_empty() {
            let units = usize::from(options[1]) * 8;
            sane = units != 0 && units <= options.len() && !(probe && options[0] == 1);
            options = options.get(units..).unwrap_or_default();
        }
        if !sane {
            return Want::Drop;
        }
        if !self.leased {
            return Want::Pass;
        }
        let router = if owner.kinds & owned::GATEWAY != 0 {
            0x80
        } else {
            0
        };
        let solicited = if probe { 0 } else { 0x40 };
        let mut body = vec![136, 0, 0, 0, router | solicited | 0x20, 0, 0, 0];
        body.extend(octets(target));
        body.extend([2, 1]);
        body.extend(self.leg.mac);
        let all_nodes = "ff02::1".parse().expect("group");
        let mut answer = self.frame[..self.link.l3].to_vec();
        let mut way = self.back();
        if probe {
            way.to = [0x33, 0x33, 0, 0, 0, 1];
            if self.link.l3 == 18 {
                answer[14..16].copy_from_slice(&self.link.vlan.to_be_bytes());
            }
        }
        let told = if probe { all_nodes } else { from };
        let mut ip = packet(target, told, 58, &body, 2);
        ip[7] = 255;
        answer.extend(ip);
        Want::Sent(leave(&answer, &self.link, &way))
    }
}
