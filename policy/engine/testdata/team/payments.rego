# Support sandboxes pay only while somebody can be asked, and with an approval.
package sallyport.team.payments

approve contains "payments need a person's approval" if {
	input.phase == "request"
	input.destination.host == "pay.example.com"
	input.sandbox.tags.team == "support"
	input.request.method != "GET"
}
