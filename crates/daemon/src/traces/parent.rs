//! The trace that a caller says its request belongs to: `traceparent` of the W3C's Trace Context.
//!
//! Owns: what of it is believed. `tracestate` is not read: it is for whoever calls on, and the daemon calls nobody.
//! Never: refuses a request. What is no parent is as none.

use http_server::AdoptSpan;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// The header field.
const TRACEPARENT: &str = "traceparent";

/// Makes what the header fields name the parent of the span.
pub(crate) const ADOPT: AdoptSpan = |headers, span| {
    let mut given = headers.get_all(TRACEPARENT).iter();
    // Of two it could not be said which is meant.
    if let (Some(value), None) = (given.next(), given.next())
        && let Some(parent) = value.to_str().ok().and_then(parse)
    {
        // It fails for a span that nobody sends, which needs no parent.
        let _ = span.set_parent(opentelemetry::Context::new().with_remote_span_context(parent));
    }
};

/// `VERSION-TRACE-PARENT-FLAGS` in lower hexadecimal digits: 2, 32, 16 and 2 of them. Versions after 00 may have more behind
/// that; ff is none.
fn parse(text: &str) -> Option<SpanContext> {
    let mut parts = text.splitn(5, '-');
    let mut digits = |count: usize| {
        let part = parts.next()?;
        let is_hex = part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (part.len() == count && is_hex).then_some(part)
    };
    let (version, trace, parent, flags) = (digits(2)?, digits(32)?, digits(16)?, digits(2)?);
    if version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    // Of the flags only this one has a meaning here.
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let (trace, parent) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(parent).ok()?);
    Some(SpanContext::new(trace, parent, flags, true, TraceState::default())).filter(SpanContext::is_valid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_is_read_exactly() {
        const GIVEN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let parent = parse(GIVEN).unwrap();
        assert_eq!(parent.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(parent.span_id().to_string(), "b7ad6b7169203331");
        assert!(parent.is_sampled() && parent.is_remote());
        assert!(!parse(&GIVEN.replace("-01", "-00")).unwrap().is_sampled());
        assert!(parse(&GIVEN.replace("-01", "-03")).unwrap().is_sampled(), "other flags are no fault");
        assert!(parse(&GIVEN.replacen("00-", "cc-", 1)).is_some(), "later versions begin the same way");
        assert!(parse(&format!("{}-what", GIVEN.replacen("00-", "cc-", 1))).is_some());
    }

    #[test]
    fn what_is_no_parent_is_as_none() {
        for refused in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "+0-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319-b7ad6b71692033311-01",
            "ccé0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(parse(refused), None, "{refused:?}");
        }
    }
}
