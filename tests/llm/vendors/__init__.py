"""The other side of the line: a real HTTP server on loopback that speaks each vendor's wire format.

async with trio.open_nursery() as nursery:
    vendor = await nursery.start(serve, gemini_wire)          # or another _wire
    vendor.will(Says([Text("Hello")]), Refuses(503, "overloaded"))      # one for each request, in order
    provider = Gemini(ProviderAccount("gemini", vendor.key, "GEMINI_API_KEY"), vendor.base_url, Timeouts())
    ...
    vendor.exchanges[0].question                              # what it was asked, read back from the wire
"""
