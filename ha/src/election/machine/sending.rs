//! Adverts on their way out, and what became of them.

use super::{Alarm, Election, Kind, MonoTime, Output, Priority};

impl Election {
    pub(super) fn send(&mut self, decided_at: MonoTime, kind: Kind, priority: Priority) {
        let interval = self.settings.interval;
        self.outputs.push_back(Output::SendAdvert {
            kind,
            priority,
            interval,
            epoch: self.epoch_said(kind),
            decided_at,
        });
    }

    pub(super) fn count_sent(&mut self, kind: Kind) {
        self.send_failing = false;
        match kind {
            Kind::Owner => self.counters.adverts_sent += 1,
            Kind::Claim => self.counters.claims_sent += 1,
            Kind::Preempt => self.counters.preempts_sent += 1,
            Kind::Release => self.counters.releases_sent += 1,
            // Said with every datagram, by the driver.
            Kind::Standby | Kind::Idle => {}
        }
    }

    pub(super) fn count_send_error(&mut self, now: MonoTime) {
        self.counters.send_errors += 1;
        self.send_failing = true;
        self.alarm(now, Alarm::SendErrors);
    }
}
