package sallyport.team.uploads_test

import data.sallyport.team.uploads

test_small_upload if {
	count(uploads.deny) == 0 with input as {"request": {"method": "PUT", "size": 100}}
}

test_large_upload if {
	count(uploads.deny) == 1 with input as {"request": {"method": "PUT", "size": 99999999}}
}

test_upload_without_size if {
	count(uploads.deny) == 1 with input as {"request": {"method": "POST", "size": -1}}
}

test_name if {
	count(uploads.deny) == 0 with input as {"phase": "dns"}
}
