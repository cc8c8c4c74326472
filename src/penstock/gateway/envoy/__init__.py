"""The gateway's choices for an Envoy that passes requests on itself: an endpoint picker."""
