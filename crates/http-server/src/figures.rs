//! What the door counts.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! figures {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters themselves, shared by all connections.
        #[derive(Debug, Default)]
        pub(crate) struct Figures {
            $(pub(crate) $name: AtomicU64,)*
        }

        /// What was counted since the start. All but `connections_open` only rise.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counted {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Figures {
            pub(crate) fn counted(&self) -> Counted {
                Counted { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl Counted {
            /// The names and values, in a fixed order: for metrics.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

figures! {
    /// Connections that are open.
    connections_open,
    /// Connections that were accepted and served.
    connections_accepted,
    /// Connections that were turned away because there were too many in total.
    connections_refused_total,
    /// Connections that were turned away because there were too many from one source.
    connections_refused_source,
    /// Times that accepting rested because the system refused, as without descriptors.
    accept_pauses,
    /// Connections whose TLS handshake failed or took too long.
    handshakes_failed,
    /// Connections closed because the head of a request took too long.
    heads_too_slow,
    /// Connections closed because nothing was asked for too long.
    idle_closed,
    /// Connections closed because their answer was not taken.
    answers_not_taken,
    /// Requests answered with a status below 400.
    requests_ok,
    /// Requests answered with 401 or 403.
    requests_forbidden,
    /// Requests answered with another 4xx.
    requests_refused,
    /// Requests answered with 5xx.
    requests_failed,
    /// Panics of handlers.
    panics,
    /// Audit entries that could not be kept.
    audit_lost,
}

impl Figures {
    pub(crate) fn add(figure: &AtomicU64) {
        figure.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, status: u16) {
        Figures::add(match status {
            401 | 403 => &self.requests_forbidden,
            400..500 => &self.requests_refused,
            500.. => &self.requests_failed,
            _ => &self.requests_ok,
        });
    }
}
